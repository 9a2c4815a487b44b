"""`tangentless doctor`: what it shows, and that it finds wrong results."""

import json
import subprocess
import sys

import numpy as np
import pytest

from shell import run
from tangentless import devices, doctor
from tangentless.backends.cpu import simd


def stored():
    return json.loads(doctor.resources.files("tangentless").joinpath("doctor.json").read_text())


@pytest.fixture
def without_compiling(monkeypatch):
    """The self-test uses the reference in place of all backends."""
    device = devices.Device("reference")
    monkeypatch.setattr(doctor, "Device", lambda name, precision: device)


def test_stored_values_are_those_of_the_reference():
    found = doctor.stored_values()
    assert found.keys() == stored().keys()
    for name, values in stored().items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12)


def test_every_backend_here_passes():
    checks = list(doctor.self_test())
    assert {(check.backend, check.precision) for check in checks} >= {("cpu", "float32"), ("cpu", "float64")}
    assert [str(check) for check in checks if not check.good] == []


def test_wrong_results_are_reported_with_status_1(monkeypatch, without_compiling):
    real, calls = doctor._matrix, []

    def sometimes(k, device):
        calls.append(k)
        if len(calls) == 1:
            raise OSError("no such library")
        return real(k, device) * (1.001 if len(calls) == 2 else float("nan") if len(calls) == 3 else 1)

    monkeypatch.setattr(doctor, "_matrix", sometimes)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["good"]
    assert [check["good"] for check in found["checks"][:4]] == [False, False, False, True]
    assert found["checks"][0]["trouble"] == "OSError: no such library"
    assert "something is wrong" in result.stderr


def test_doctor_without_its_test_prints_one_object():
    result = run("doctor", "--no-test", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["good"], found["checks"]) == (0, True, [])
    assert found["backend"]["chosen"] in ("cpu", "cuda")
    assert found["machine"]["vector_bits"] in (128, 256, 512)
    assert found["machine"]["memory"] > 0
    assert {cache["what"] for cache in found["caches"]} >= {"code for CPUs", "downloads"}


def test_data_sets_that_are_there_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TANGENTLESS_DATA", str(tmp_path))
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    assert "cifar10" in dict(doctor.survey_lines(doctor.survey()))["data sets"]
    monkeypatch.setenv("TANGENTLESS_DATA", str(tmp_path / "nowhere"))
    assert "TANGENTLESS_DATA names it" in dict(doctor.survey_lines(doctor.survey()))["data sets"]


@pytest.mark.parametrize(("features", "bits"), [("", 128), ("+avx,+avx2,+fma", 256), ("+avx,+avx2,+fma,+avx512f", 512)])
def test_the_width_of_vectors_is_told_with_its_reason(features, bits, monkeypatch):
    monkeypatch.setenv("NUMBA_CPU_FEATURES", features)
    simd.host_features.cache_clear()
    machine = doctor._machine()
    assert (machine["vector_bits"], machine["why"]) == (bits, "NUMBA_CPU_FEATURES says so")
    monkeypatch.undo()
    simd.host_features.cache_clear()


def test_doctor_runs_without_packages_for_stores_and_pictures():
    blocked = {"matplotlib", "google_crc32c", "torch", "dask", "fsspec", "zarr"}
    code = f"""
import sys
for name in {blocked}: sys.modules[name] = None
from tangentless.cli import main
sys.argv = ["tangentless", "doctor", "--no-test"]
main()"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vectors" in done.stdout


def test_gpus_are_described(monkeypatch, fake_cupy):
    class Gpu:
        compute_capability = "90"

        def __init__(self, index):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    told = {"memGetInfo": (100, 200), "driverGetVersion": 13000, "runtimeGetVersion": 12090, "getDeviceCount": 1}
    for name, value in told.items():
        monkeypatch.setattr(fake_cupy.cuda.runtime, name, lambda value=value: value, raising=False)
    monkeypatch.setattr(fake_cupy.cuda.runtime, "getDeviceProperties", lambda index: {"name": b"H200"}, raising=False)
    monkeypatch.setattr(fake_cupy.cuda, "Device", Gpu, raising=False)
    monkeypatch.setattr(fake_cupy, "__version__", "14.0", raising=False)
    (found,) = doctor._gpus()
    assert (found["name"], found["memory"], found["cuda_driver"], found["cupy"]) == ("H200", 200, 13000, "14.0")
    told = dict(doctor.survey_lines({**doctor.survey(), "gpus": [found]}))
    assert told["GPU"] == "H200; 200 B, 100 B of it free; compute capability 9.0"
    assert told["CUDA"] == "driver 13.0, runtime 12.9, CuPy 14.0"
