"""Bits that do not depend on BLAS: coefficients of duals, and with them float32 kernels of the fused path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from processors import PROCESSORS
from tangentless.gram import open_gram, verify

BLAS = ["Haswell", "Sandybridge", "Nehalem", "SkylakeX"]  # kernels of OpenBLAS; the last one needs AVX-512

COEFFICIENTS = """
from tangentless import forms
for tolerance in forms.TOLERANCE.values():
    print(forms.arc_polynomial(tolerance), forms.angle_polynomial(tolerance), forms.exp2_polynomial(tolerance))
    print(forms.exponential_series(1.0, tolerance), forms.arc_powers((0, 1, 2, 4), tolerance))
"""

KERNELS = """
import hashlib
import numpy as np
import tangentless as tl
from threadpoolctl import threadpool_info
X = np.random.default_rng(0).standard_normal((40, 16, 16, 3))
for text in ("conv3 relu pool2 conv3 relu globalpool normalize relu", "conv3 gaussian globalpool normalize gaussian"):
    print(hashlib.sha256(tl.kernel(text)(X, backend="cpu").tobytes()).hexdigest())
print({found.get("architecture") for found in threadpool_info() if found["internal_api"] == "openblas"})
"""

STORE = """
import sys
import numpy as np
import tangentless as tl
X = np.random.default_rng(0).standard_normal((40, 16, 16, 3))
store, *mixed = sys.argv[1:]
try:
    tl.gram("conv3 relu globalpool", X, store=store, backend="cpu", tile=16, progress=False, mixed=bool(mixed))
except tl.errors.StoreMismatchError as error:
    print(error)
"""


def output(code: str, *arguments: str, **environment: str) -> str:
    given, command = {**os.environ, **environment}, [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=given, check=True, capture_output=True, text=True).stdout


def test_coefficients_of_duals_are_the_same_with_every_blas() -> None:
    assert output(COEFFICIENTS, OPENBLAS_CORETYPE="Nehalem") == output(COEFFICIENTS)


@pytest.mark.slow
def test_float32_kernels_have_the_same_bits_with_every_blas() -> None:
    found = {}
    for blas in BLAS if "avx512f" in features() else BLAS[:-1]:
        *bits, used = output(KERNELS, OPENBLAS_CORETYPE=blas).splitlines()
        assert used == f"{{{blas!r}}}"
        found[blas] = bits
    assert len(set(map(tuple, found.values()))) == 1, found


@pytest.mark.slow
def test_a_store_is_continued_at_another_simd_width_only_if_that_is_said(tmp_path: Path) -> None:
    able = [processor for processor in PROCESSORS if set(processor.features) <= features()]
    if len(able) < 3:
        pytest.skip("this processor has vectors of one width only")
    widths = [
        {**processor.environment, "NUMBA_CACHE_DIR": str(tmp_path / processor.name)} for processor in (able[0], able[2])
    ]
    store = tmp_path / "k.zarr"
    assert not output(STORE, str(store), **widths[0])
    (store / "kernel/c/0/1").unlink()
    assert "this processor rounds differently" in output(STORE, str(store), **widths[1])
    assert not output(STORE, str(store), "mixed", **widths[1])
    assert verify(store).good
    assert len(open_gram(store).manifest.bits) == 2


def features() -> set[str]:
    return {name for name, has in llvm.get_host_cpu_features().items() if has}
