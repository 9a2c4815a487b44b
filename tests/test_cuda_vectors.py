"""Classical kernels of vectors on the emulated GPU against the CPU, on rows that lose digits."""

from __future__ import annotations

import numpy as np
import pytest

import tangentless as tl
from cuda_host.arrays import DeviceArray
from cuda_host.machine import COMPILER, HostMachine
from tangentless.backends import ARITHMETIC
from tangentless.backends.cuda import CudaBackend
from tangentless.classical import NNGP, NTK, ArcCosine, Gaussian, Linear, Polynomial, gpu
from tangentless.errors import InputError
from tangentless.gram import gram
from tangentless.kernel import Kernel
from tangentless.tiles import fill

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")

KERNELS = [
    Linear(),
    Polynomial(3, 0.5),
    Gaussian(0.1),
    *(ArcCosine(order) for order in range(3)),
    NNGP(1),
    NNGP(4),
    *(NTK(depth, fixed) for depth, fixed in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 4))),
]


def hostile_rows(features: int, scale: float = 1.0) -> np.ndarray:
    """Random rows, duplicates, near duplicates, opposite rows, multiples, and zero."""
    rng = np.random.default_rng(features)
    rows = rng.standard_normal((24, features))
    rows[10:12] = rows[:2]
    rows[12:14] = rows[:2] + 1e-8 * rng.standard_normal((2, features))
    rows[14:16] = -rows[:2]
    rows[16:18] = -rows[:2] + 1e-8 * rng.standard_normal((2, features))
    rows[18], rows[19] = 1e-3 * rows[0], 0.0
    rows[20] = rows[1] * (1 + 1e-12)
    return rows * scale


def assert_equal_entries(found: np.ndarray, wanted: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Compare up to rounding errors relative to sqrt(k(x, x) k(z, z)), the largest value that an entry can have."""
    scale = np.sqrt(np.multiply.outer(left, right))
    assert np.isfinite(found).all()
    assert (np.abs(found - wanted) <= 1e-13 * scale).all()


@pytest.mark.parametrize("k", KERNELS, ids=repr)
@pytest.mark.parametrize("features", [1, 3, 50])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_every_kernel_matches_the_processor(backend: CudaBackend, k: Kernel, features: int, scale: float) -> None:
    if isinstance(k, Gaussian):
        k = Gaussian(k.gamma / scale**2)
    X = hostile_rows(features, scale)
    diagonal = k.diag(X, backend="cpu")
    found = k(X, backend=backend)
    assert np.array_equal(found, found.T)
    np.testing.assert_allclose(np.diagonal(found), diagonal, rtol=1e-14)
    np.testing.assert_allclose(k.diag(X, backend=backend), diagonal, rtol=1e-14)
    assert_equal_entries(found, k(X, backend="cpu"), diagonal, diagonal)
    other = k(X[:7], X, backend=backend)  # the same pairs, but which of them are diagonal is not known
    assert_equal_entries(other, k(X[:7], X, backend="cpu"), diagonal[:7], diagonal)


@pytest.mark.parametrize("k", [Gaussian(1e13), NTK(3), ArcCosine(0)], ids=repr)
def test_distances_between_near_duplicates_keep_their_digits(backend: CudaBackend, k: Kernel) -> None:
    x = np.random.default_rng(0).standard_normal((20, 512))
    z = x + 1e-8 * np.random.default_rng(1).standard_normal((20, 512))
    near, exact = (1 - np.diagonal(k(x, z, backend=where)) / k.diag(x, backend="cpu") for where in (backend, "cpu"))
    assert (near > 1e-9).all()  # well above rounding errors
    np.testing.assert_allclose(near, exact, rtol=1e-10, atol=3e-15)


@pytest.mark.parametrize("k", KERNELS, ids=repr)
def test_tiles_change_nothing_but_rounding(backend: CudaBackend, k: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    X = hostile_rows(20)
    whole, diagonal = k(X, backend=backend), k.diag(X, backend="cpu")
    monkeypatch.setattr(gpu.GpuVectors, "tile", 7)
    done: list[int] = []
    tiles = k(X, backend=backend, progress=lambda count, total: done.append(count))
    assert done[-1] == 24 * 25 // 2
    assert np.array_equal(tiles, tiles.T)
    assert_equal_entries(tiles, whole, diagonal, diagonal)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, ">f8"])
def test_images_of_any_type_are_read_as_vectors(backend: CudaBackend, dtype: object) -> None:
    X = np.random.default_rng(0).integers(0, 255, (9, 4, 5, 3)).astype(dtype)
    k = 0.5 * NTK(3).mirrored() + Gaussian(1e-6) * tl.kernel("relu globalpool")
    np.testing.assert_allclose(k(X, backend=backend), k(X, backend="cpu"), rtol=1e-6)  # float32: the architecture


@pytest.mark.parametrize("k", [*KERNELS, Linear() + 0.5 * Gaussian(0.2) * NTK(2)], ids=repr)
def test_rows_on_the_device_never_come_back(backend: CudaBackend, k: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    X = hostile_rows(6)
    expected = k(X, backend=backend)
    monkeypatch.delattr(HostMachine, "download")
    rows = k.prepare(backend, X.view(DeviceArray))
    found = fill(k, backend, rows, rows, symmetric=True)
    assert isinstance(found, DeviceArray)
    assert isinstance(rows.diagonal, DeviceArray)
    assert np.array_equal(found.view(np.ndarray), expected)


@pytest.mark.parametrize("k", [*KERNELS, Linear() + 0.5 * Gaussian(0.2) * NTK(2)], ids=repr)
def test_gradients_match_the_processor(backend: CudaBackend, k: Kernel) -> None:
    # Kernels with a kink have infinite slopes between parallel rows, so gradients of nearly parallel ones are rounding.
    X = hostile_rows(6)[: 10 if isinstance(k, NTK) or k == ArcCosine(0) else None]
    G = np.random.default_rng(0).standard_normal((len(X), len(X)))
    for x, z, g in [(X, X[3:], G[:, 3:]), (X, None, G)]:
        found, wanted = (k.vjp(x, z, g, parameters=True, backend=where) for where in (backend, "cpu"))
        for one, other in zip(found[:-1], wanted[:-1], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-11 * np.abs(other).max())
        assert found[-1] == pytest.approx(wanted[-1], rel=1e-11)


def test_powers_beyond_float64_are_refused(backend: CudaBackend) -> None:
    with pytest.raises(InputError, match="exceed float64"):
        Polynomial(9)(np.full((2, 3), 1e60), backend=backend)


def test_stores_know_which_arithmetic_computed_them(backend: CudaBackend, tmp_path: object) -> None:
    X = hostile_rows(6)
    matrix = gram(Gaussian(0.1), X, store=tmp_path / "k.zarr", backend=backend, progress=False)
    assert matrix.manifest.arithmetic == (ARITHMETIC["cuda"],)
    np.testing.assert_allclose(np.asarray(matrix), Gaussian(0.1)(X, backend="cpu"), rtol=1e-12)


@pytest.mark.parametrize("text", ["relu relu relu", "relu normalize gaussian"])
def test_architectures_of_vectors_are_exact_too(backend: CudaBackend, text: str) -> None:
    X, k = hostile_rows(100), tl.kernel(text)
    assert "general path, float64" in backend.describe(k.graph((100,)))
    diagonal = k.diag(X, backend="cpu")
    assert_equal_entries(k(X, backend=backend), k(X, backend="cpu"), diagonal, diagonal)
    if text == "relu relu relu":
        assert_equal_entries(k(X, backend=backend), NNGP(4)(X, backend="cpu"), diagonal, diagonal)
