"""The documentation site: its calculator agrees with the package, its gallery is complete, its examples run."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tangentless as tl
from conformance import CHAINS, GRAPHS
from tangentless.architecture import NAMED
from tangentless.errors import ArchitectureError
from tangentless.layers import LAYERS, Nonlinearity

ROOT = Path(__file__).parents[1]
DOCS, EXAMPLES = ROOT / "docs", sorted((ROOT / "examples").glob("*.py"))
SHAPES = ((32, 32, 3), (16, 24, 1), (64, 64, 3), (40, 4), (7,))
COUNT = """
const cost = require(process.argv[1]), asked = JSON.parse(require("fs").readFileSync(0));
const count = ([text, shape]) => {
  try { return cost.elements(text, shape, asked.data); } catch (error) { return null; }  // it does not fit
};
console.log(JSON.stringify(asked.cases.map(count)));
"""


def elements(text, shape):
    try:
        return tl.kernel(text).elements(shape)
    except ArchitectureError:
        return None


@pytest.mark.skipif(shutil.which("node") is None, reason="the calculator runs in a browser; here Node.js stands in")
def test_the_calculator_counts_elements_as_graphs_do():
    cases = [*CHAINS, *GRAPHS, *((text, shape) for text in NAMED for shape in SHAPES)]
    names = [name for name, layer in LAYERS.items() if issubclass(layer, Nonlinearity)]
    asked = {"data": {"named": NAMED, "nonlinearities": [*names, "normalize"]}, "cases": cases}
    run = subprocess.run(
        ["node", "-e", COUNT, str(DOCS / "_static" / "cost.js")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    expected = [elements(text, shape) for text, shape in cases]
    assert json.loads(run.stdout) == expected
    assert sum(one is not None for one in expected) > len(cases) / 2


def test_every_example_has_its_place_in_the_gallery():
    listed = re.findall(r'^    "(\w+)",$', (DOCS / "site_pages.py").read_text(), re.MULTILINE)
    assert sorted(listed) == [path.stem for path in EXAMPLES]


def test_the_diagram_of_layers_shows_the_kernel_itself(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    diagrams = importlib.import_module("diagrams")
    images = np.random.default_rng(0).random((2, 8, 8, 1))
    *_, (_, last) = diagrams.kernels_after(diagrams.SMALL, *images[..., 0])
    k = tl.kernel(" ".join(diagrams.SMALL))
    assert last.item() == pytest.approx(k(images, backend="reference")[0, 1], rel=1e-12)


@pytest.mark.parametrize("module", ["", "classical", "datasets", "gram", "networks", "preprocessing", "solve"])
def test_every_public_name_is_in_the_reference(module):
    names = importlib.import_module(f"tangentless.{module}".rstrip(".")).__all__
    page = (DOCS / "api" / "index.md").read_text()
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    run = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
