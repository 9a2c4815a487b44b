"""Error messages if no GPU can be used: what is wrong, and what to install or change."""

from __future__ import annotations

import importlib.util
import logging
import sys

import pytest

from tangentless import devices
from tangentless.backends import cuda, get_backend
from tangentless.backends.cuda import gpu_present, machine
from tangentless.errors import BackendError


@pytest.fixture
def fresh_choice():
    """The automatic choice, as in a new process."""
    devices.choose_backend.cache_clear()
    yield
    devices.choose_backend.cache_clear()


def test_a_missing_cupy_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # None: importing the module raises ImportError
    with pytest.raises(
        BackendError, match=r"needs CuPy.*pip install 'tangentless\[cuda13\]', or tangentless\[cuda12\]"
    ):
        get_backend("cuda")
    assert not gpu_present()


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
@pytest.mark.skipif(gpu_present(), reason="there is a GPU")
def test_the_real_cupy_without_a_gpu_is_reported() -> None:
    with pytest.raises(BackendError, match=r"no NVIDIA (driver|GPU).*backend='cpu'"):
        get_backend("cuda")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
            "too old for the CUDA runtime of the installed CuPy; install or update the driver",
        ),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "there is no NVIDIA GPU on this machine"),
        ("cudaErrorUnknown: unknown error", "CUDA cannot be used here: cudaErrorUnknown"),
    ],
)
def test_errors_of_the_driver_are_explained(message: str, told: str) -> None:
    assert told in machine._reason(message)
    assert "backend='cpu'" in machine._reason(message)


@pytest.mark.parametrize("capability", ["75", "70", "61"])
def test_a_gpu_that_is_too_old_is_named(capability: str) -> None:
    with pytest.raises(
        BackendError, match=f"GPU 1 has compute capability {capability[0]}.{capability[1]}.*8.0 or newer"
    ):
        machine.check_capability(1, capability)


@pytest.mark.parametrize("capability", ["80", "86", "90", "100", "120"])
def test_newer_gpus_are_taken(capability: str) -> None:
    machine.check_capability(0, capability)


def test_the_automatic_choice_is_announced_once(fresh_choice: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tangentless"):
        names = {get_backend("auto").name for _ in range(3)}
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.INFO
    assert f"chose {names.pop()!r}" in caplog.text
    assert not names


def test_the_automatic_choice_leaves_an_old_gpu_alone(
    fresh_choice: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(cuda, "check_gpus", lambda: machine.check_capability(0, "75"))
    with caplog.at_level(logging.INFO, logger="tangentless"):
        assert get_backend("auto").name == "cpu"
    assert "chose 'cpu': GPU 0 has compute capability 7.5" in caplog.text
