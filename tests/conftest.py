"""What several tests share. Inputs are read-only, so that code which writes to its input fails."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("MPLBACKEND", "Agg")


def frozen(values):
    """The array, write-protected."""
    values = np.asarray(values)
    values.setflags(write=False)
    return values


def hear_interrupts():
    """To be run in a child process: tests may run where the shell has turned interrupts off."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    return np.random.default_rng(20200305)


@pytest.fixture
def fake_cupy(monkeypatch):
    """NumPy under CuPy's name, with its conventions."""
    from fake_cupy import install

    return install(monkeypatch)


@pytest.fixture
def data_folder():
    """The publishers' data sets, where TANGENTLESS_DATA points at them."""
    folder = os.environ.get("TANGENTLESS_DATA")
    if not folder:
        pytest.skip("TANGENTLESS_DATA does not point at the data sets")
    return Path(folder)
