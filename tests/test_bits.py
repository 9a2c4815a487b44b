"""Bits that do not depend on BLAS: coefficients of duals, and with them float32 kernels of the fused path."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BLAS = ["Haswell", "Sandybridge", "Nehalem"]  # kernels of OpenBLAS that every processor with AVX2 can run

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
X = np.random.default_rng(0).standard_normal((40, 16, 16, 3))
for text in ("conv3 relu pool2 conv3 relu globalpool normalize relu", "conv3 gaussian globalpool normalize gaussian"):
    print(hashlib.sha256(tl.kernel(text)(X, backend="cpu").tobytes()).hexdigest())
"""


def output(code: str, **environment: str) -> str:
    given = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=given, check=True, capture_output=True, text=True).stdout


def test_coefficients_of_duals_are_the_same_with_every_blas() -> None:
    assert output(COEFFICIENTS, OPENBLAS_CORETYPE="Nehalem") == output(COEFFICIENTS)


@pytest.mark.slow
@pytest.mark.parametrize("blas", BLAS)
def test_float32_kernels_have_the_same_bits_with_every_blas(blas: str) -> None:
    assert output(KERNELS, OPENBLAS_CORETYPE=blas) == output(KERNELS)
