"""Training on K + M is training on all images and their mirror images, to rounding."""

import numpy as np
import pytest

from tangentless import kernel
from tangentless.datasets import load
from tangentless.experiments.whitening import Whitening
from tangentless.kernel import Crossed
from tangentless.solve import solve_ridge


def gaps(count, tests, folder, name, ridges):
    """For every ridge, the largest difference between the predictions of the two ways for test images."""
    digits, k = load("digits"), kernel(name)
    zca = Whitening(1e-3).fit(digits, folder)
    X, T = zca.transform(digits.train.images[:count]), zca.transform(digits.test.images[:tests])
    Y = np.eye(10)[digits.train.labels[:count]]
    options = {"backend": "cpu", "precision": "float64"}
    both = np.concatenate([X, X[:, :, ::-1]])
    K, beside = (k(*sets, **options) + Crossed(k)(*sets, **options) for sets in ((X,), (T, X)))
    doubled, beside_both = k(both, **options), k(T, both, **options)
    found = []
    for ridge in ridges:
        ours = beside @ solve_ridge(K, Y, ridge).coefficients
        theirs = beside_both @ solve_ridge(doubled, np.concatenate([Y, Y]), ridge).coefficients
        found.append(np.abs(ours - theirs).max())
    return found


def test_flips_equal_the_doubled_matrix_on_few_images(tmp_path):
    assert max(gaps(40, 10, tmp_path, "myrtle5", [1e-4])) < 1e-9


@pytest.mark.slow  # a million pairs in float64
def test_flips_equal_the_doubled_matrix_on_500_images(tmp_path):
    assert max(gaps(500, 50, tmp_path, "myrtle10-gaussian", [1e-6, 1e-4])) < 1e-9
