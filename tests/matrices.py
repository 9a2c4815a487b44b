"""Kernel matrices and targets for the tests of the solvers."""

import numpy as np

import tangentless as tl
from tangentless import algebra


def random_kernel_matrix(rows, seed=0, features=None):
    features = np.random.default_rng(seed).standard_normal((rows, 2 * rows if features is None else features))
    return features @ features.T / features.shape[1]


def image_kernel_matrix(rows):
    images = np.random.default_rng(7).standard_normal((rows, 8, 8, 1))
    return tl.kernel("conv3 relu pool2 conv3 relu globalpool normalize relu")(images)


def random_targets(rows, columns=3, seed=1):
    return np.random.default_rng(seed).standard_normal((rows, columns))


def refit_without_each_row(K, Y, ridge):
    """Leave-one-out predictions by brute force: one solution for each row that is left out."""
    predictions = np.empty_like(Y)
    for i in range(len(K)):
        rest = np.delete(np.arange(len(K)), i)
        predictions[i] = K[i, rest] @ np.linalg.solve(K[np.ix_(rest, rest)] + ridge * np.eye(len(rest)), Y[rest])
    return predictions


def solve_in_small_blocks(monkeypatch):
    """Blocks of 7 rows for matrices of more than 20 rows: 20 rows take one LAPACK call, 21 take several."""
    monkeypatch.setattr(algebra, "LARGEST_CALL", 20)
    monkeypatch.setattr(algebra, "_CPU_BLOCK", 7)
    monkeypatch.setattr(algebra, "_GPU_BLOCK", 7)
