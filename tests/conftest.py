"""Fixtures and helpers shared by many tests. Inputs are read-only, so that code which writes to its input fails."""

import gc
import io
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("MPLBACKEND", "Agg")
# No deadlines: on a busy machine an example may take any time to run or to be generated.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_finish():
    """Keep the garbage collector from scanning imported modules and collected tests, which live to the end anyway."""
    gc.collect()
    gc.freeze()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def frozen(values):
    """The array, write-protected."""
    values = np.asarray(values)
    values.setflags(write=False)
    return values


def hear_interrupts():
    """Enable SIGINT in a child process: shells ignore it in commands that they start in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread or process does. The deadline only ends a test that would hang."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "waited for ten minutes"
        time.sleep(0.01)


@pytest.fixture
def rng():
    return np.random.default_rng(20200305)


@pytest.fixture
def fake_cupy(monkeypatch):
    """A module `cupy` made of NumPy, so that code for GPUs runs on the host (see `fake_cupy.py`)."""
    from fake_cupy import install

    return install(monkeypatch)


@pytest.fixture
def backend(monkeypatch):
    """The cuda backend on a GPU that is emulated: its kernels run on the host."""
    from cuda_host.machine import emulate
    from tangentless.backends.cuda import CudaBackend

    emulate(monkeypatch)
    return CudaBackend()


@pytest.fixture
def store(tmp_path):
    """A complete store, of the matrix of 39 rows."""
    from crash.stores import make

    make(tmp_path / "k.zarr", 39)
    return tmp_path / "k.zarr"


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium for one test module: while Playwright runs, no other test can start an event loop."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is an extra: pip install -e '.[browser]'"
    )
    places = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    program = next((place for place in places if place), None)
    if program is None:
        pytest.skip("there is no Chromium here; Debian's package is chromium")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def data_folder():
    """The folder of the published data sets, TANGENTLESS_DATA; skips the test if it is not set."""
    folder = os.environ.get("TANGENTLESS_DATA")
    if not folder:
        pytest.skip("TANGENTLESS_DATA does not point at the data sets")
    return Path(folder)
