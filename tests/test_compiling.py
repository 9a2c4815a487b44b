"""Compiling: it is announced, not counted in rates, and can be interrupted; a line says if code cannot be cached."""

import _thread
import os
import signal
import subprocess
import sys
import threading

import pytest

from tangentless import aside
from tangentless.backends.cpu.compiling import compiling, start_python
from tangentless.backends.workers import count_workers
from tangentless.timing import timed

# Numba finds cache folders by these classes; without them no folder can be written.
WITHOUT_FOLDERS = "from numba.core import caching\ncaching.CacheImpl._locator_classes = []\n"
LISTEN = "import logging, sys\nlogging.basicConfig(level='INFO', stream=sys.stdout, format='%(message)s')\n"


def run(script, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


@pytest.fixture
def listening():
    """Enable SIGINT: it is ignored if a shell started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_an_interrupt_does_not_wait_for_the_compiler():
    finish, ended = threading.Event(), threading.Event()

    def compile_for_long():
        _thread.interrupt_main()
        finish.wait(60)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        compiling(compile_for_long)
    assert not ended.is_set()
    finish.set()


def test_errors_of_the_compiler_are_raised_where_it_was_called():
    with pytest.raises(ZeroDivisionError):
        compiling(lambda: 1 // 0)


def test_times_exclude_compiling():
    result, seconds = timed(lambda: aside.count_compiling(1000.0) or "done")
    assert result == "done"
    assert -1000 < seconds < -900  # the 1000 s of compiling are subtracted


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(  # ten seconds of compiling
            "tl.kernel('conv1 polynomial2 globalpool')(np.ones((2, 3, 3, 1)), backend='cpu')", marks=pytest.mark.slow
        ),
        "from tangentless.solve import smo; smo.sort_by_class(np.eye(2), np.arange(2), np.arange(1))",
    ],
)
def test_without_a_folder_for_compiled_code_one_line_names_the_remedy(work):
    done = run(f"{WITHOUT_FOLDERS}{LISTEN}import numpy as np, tangentless as tl\n{work}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("set NUMBA_CACHE_DIR") == 1
    assert done.stdout.count("compiling for this processor") == ("kernel" in work)


@pytest.mark.skipif(count_workers(None) == 1, reason="a second process needs a second core")
def test_another_process_compiles_the_driver_only_where_it_is_not_on_disk(tmp_path):
    work = "from tangentless.backends.cpu import sweep\naside = sweep.compile_driver_aside()\n"
    first = run(f"{work}print(aside.wait(), sweep.compile_driver_aside())", NUMBA_CACHE_DIR=str(tmp_path))
    assert (first.stdout, first.stderr) == ("0 None\n", "")
    assert run(f"{WITHOUT_FOLDERS}{work}print(aside)").stdout == "None\n"


@pytest.mark.parametrize("executable", ["", "/usr/bin/blender", "/no/folder/python3"])
def test_without_an_interpreter_to_start_no_other_process_compiles(executable, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    assert start_python("pass") is None
