# Every target sets up what it needs: a virtual environment in .venv, made once and again when pyproject.toml changes.
# The demo takes the package alone; what the tests need comes on top, PyTorch included.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
SITE := $(VENV)/.site
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo docs linkcheck test suite test-slow test-processors test-browser test-wheel test-lowest test-gpu lint bench clean

demo: $(READY)           ## digits, end to end
	$(BIN)/tangentless demo --output out/demo

docs: $(SITE)            ## the documentation site, in out/site: examples executed, warnings are errors, links checked
	$(BIN)/python -m sphinx -W --keep-going -b html -d out/doctrees docs out/site
	$(BIN)/python docs/check_site.py out/site README.md

linkcheck: $(SITE)       ## external links of the site, which needs a network
	$(BIN)/python -m sphinx -b linkcheck -D plot_gallery=0 -d out/doctrees docs out/linkcheck

test: $(TOOLS)           ## everything that runs in minutes; the type checker has one thread, so tests run beside it
	$(MAKE) --no-print-directory --jobs 2 lint suite

# Each of two workers solves on one thread: with two each, they wait for one another.
suite: $(TOOLS)
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not gpu and not browser" -n 2 --dist worksteal

test-slow: $(TOOLS)      ## the long ones
	$(BIN)/python -m pytest -m slow

test-processors: $(TOOLS) ## the suite again, with the BLAS kernels and vector widths of other processors: an hour
	$(BIN)/python tests/processors.py -n 2 --dist worksteal

test-browser: $(TOOLS)   ## reports in headless Chromium, Debian's package
	$(PIP) --editable ".[browser]"
	$(BIN)/python -m pytest -m browser

test-wheel:              ## the wheel, in an environment that has never seen this folder: minutes
	$(PYTHON) tests/installed.py

test-lowest:             ## the same with the oldest versions of dependencies that are allowed
	$(PYTHON) tests/installed.py --bare --lowest

test-gpu: $(TOOLS)       ## what needs an NVIDIA GPU
	$(BIN)/python -c "import cupy" 2>/dev/null || $(PIP) --editable ".[cuda]"
	$(BIN)/python -m pytest -m gpu

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(TOOLS)          ## reference, CPU backend, PyTorch and neural-tangents on the same pairs
	$(BIN)/python benchmarks/compare.py

clean:
	rm -rf docs/gallery docs/generated docs/api/names docs/_static/cost-data.js docs/sg_execution_times.rst
	rm -rf $(VENV) .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis out
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tangentless needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(TOOLS): $(READY)
	$(PIP) --editable ".[test]"
	@touch $@

$(SITE): $(READY)
	$(PIP) --editable ".[docs]"
	@touch $@
