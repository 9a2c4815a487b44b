"""The blocked solver: equal results for any block size, below and above 32-bit indices, on a CPU or a GPU."""

import numpy as np
import pytest

import tangentless as tl
from matrices import random_kernel_matrix, random_targets, refit_without_each_row, solve_in_small_blocks
from tangentless.algebra import CpuAlgebra
from tangentless.chunks import spans
from tangentless.errors import BackendError, InputError, NotPositiveDefinite
from tangentless.gram import gram
from tangentless.solve import DoesNotFit, factorise, memory_needed, solve_ridge
from tangentless.solve.matrices import check_kernel

# Condition numbers of the matrices below are under 1e4, and float64 carries 16 digits.
AGREEMENT = 1e-10


@pytest.fixture
def small_blocks(monkeypatch):
    solve_in_small_blocks(monkeypatch)


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 13, 20, 21, 28, 60])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_any_number_of_blocks_gives_the_answer_of_one(small_blocks, rows, ridge):
    K, Y = random_kernel_matrix(rows), random_targets(rows)
    solution = solve_ridge(K, Y, ridge, tilt=0.3)
    exact = np.linalg.inv(K + ridge * np.eye(rows))
    left_out = Y - exact @ Y / exact.diagonal()[:, None]
    np.testing.assert_allclose(solution.coefficients, exact @ (Y - 0.3 * left_out), rtol=0, atol=AGREEMENT * 100)
    untilted = solve_ridge(K, Y, ridge)
    np.testing.assert_allclose(untilted.leave_one_out, left_out, rtol=0, atol=AGREEMENT)
    assert untilted.residual < 1e-13


@pytest.mark.parametrize("rows", [20, 21, 40])
def test_leave_one_out_equals_refitting_on_either_side_of_the_boundary(small_blocks, rows):
    K, Y = random_kernel_matrix(rows), random_targets(rows)
    np.testing.assert_allclose(
        solve_ridge(K, Y, 1e-3).leave_one_out, refit_without_each_row(K, Y, 1e-3), rtol=0, atol=1e-9
    )


def test_no_library_is_handed_more_than_a_block(small_blocks, monkeypatch):
    sizes = {"factorise": [], "solve": []}
    for name, seen in sizes.items():
        original = getattr(CpuAlgebra, name)

        def watched(self, block, *rest, original=original, seen=seen, **options):
            seen.append(len(block))
            return original(self, block, *rest, **options)

        monkeypatch.setattr(CpuAlgebra, name, watched)
    factorise(random_kernel_matrix(21), 1.0).tilted(random_targets(21), 0.3)
    assert sizes["factorise"] == [7] * 3
    assert set(sizes["solve"]) == {7}
    sizes["factorise"].clear()
    factorise(random_kernel_matrix(20), 1.0).solve(random_targets(20))
    assert sizes["factorise"] == [20]


@pytest.mark.parametrize("bad", [3, 16, 24, 29])
def test_failures_in_any_block_name_the_row_and_a_ridge_that_works(small_blocks, bad):
    K = random_kernel_matrix(30)
    K[bad, :] = K[:, bad] = K[:, bad - 1]
    K[bad, bad] = K[bad - 1, bad - 1]
    with pytest.raises(NotPositiveDefinite, match=rf"\({bad - 1} and {bad}\): drop one of each; ridge=1e-1\d would"):
        solve_ridge(K, np.ones(30))


def test_blocks_overwrite_the_given_matrix_only_when_told(small_blocks):
    K, Y = random_kernel_matrix(30), random_targets(30)
    before = K.copy()
    first = solve_ridge(K, Y, 0.1)
    assert np.array_equal(K, before)
    second = solve_ridge(K, Y, 0.1, overwrite=True)
    assert not np.array_equal(K, before)
    assert np.array_equal(np.triu(K, 1), np.triu(before, 1))
    np.testing.assert_array_equal(first.coefficients, second.coefficients)


@pytest.mark.parametrize("tile", [16, 64])
def test_a_matrix_in_a_store_gives_the_answer_of_the_array(tmp_path, small_blocks, tile):
    X, Y = np.random.default_rng(0).standard_normal((50, 8)), random_targets(50)
    stored = gram("normalize relu", X, store=tmp_path / "k.zarr", backend="reference", tile=tile, progress=False)
    K = tl.kernel("normalize relu")(X, backend="reference")
    one, other = solve_ridge(stored, Y, 1e-3), solve_ridge(K, Y, 1e-3)
    np.testing.assert_array_equal(one.coefficients, other.coefficients)
    np.testing.assert_array_equal(one.leave_one_out, other.leave_one_out)


def test_a_store_of_two_sets_is_refused(tmp_path):
    X = np.eye(6)
    stored = gram("relu", X, X[:4], store=tmp_path / "k.zarr", backend="reference", progress=False)
    with pytest.raises(InputError, match="two sets of images; solve the matrix of one set"):
        check_kernel(stored)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_the_gpu_runs_the_same_algorithm(small_blocks, fake_cupy, kind):
    K, Y = random_kernel_matrix(40), random_targets(40)
    expected = solve_ridge(K, Y, 0.1, tilt="loo")
    given = fake_cupy.asarray(K) if kind == "device" else K
    found = solve_ridge(given, Y, 0.1, tilt="loo", backend="cuda" if kind == "host" else "auto")
    for one, other in [(found.coefficients, expected.coefficients), (found.leave_one_out, expected.leave_one_out)]:
        np.testing.assert_allclose(np.array(one), other, rtol=0, atol=AGREEMENT)
    assert np.array_equal(np.array(given), K)


def test_the_gpu_explains_failures_as_the_cpu_does(small_blocks, fake_cupy):
    K = random_kernel_matrix(30)
    K[17, :] = K[:, 17] = K[:, 4]
    K[17, 17] = K[4, 4]
    messages = []
    for backend in ("cpu", "cuda"):
        with pytest.raises(NotPositiveDefinite) as caught:
            solve_ridge(K, np.ones(30), backend=backend)
        messages.append(str(caught.value))
    assert "(4 and 17): drop one of each" in messages[1]
    assert messages[0] == messages[1]


def test_a_matrix_on_the_gpu_is_not_silently_moved(fake_cupy):
    with pytest.raises(BackendError, match=r"K is on the GPU.*K\.get\(\)"):
        solve_ridge(fake_cupy.asarray(np.eye(3)), np.ones(3), 1.0, backend="cpu")


def test_an_unknown_backend_is_refused():
    with pytest.raises(BackendError, match="unknown backend 'tpu'; there are auto, reference, cpu, cuda"):
        solve_ridge(np.eye(3), np.ones(3), backend="tpu")


def test_what_cannot_fit_is_refused_before_it_starts_and_named(monkeypatch):
    monkeypatch.setattr(CpuAlgebra, "free_bytes", lambda self: 10_000)
    with pytest.raises(DoesNotFit, match=r"100 rows solved on the cpu need 0\.0 GB.*backend='cuda'.*overwrite=True"):
        solve_ridge(np.eye(100), np.ones(100), 1.0)
    assert solve_ridge(np.eye(100), np.ones(100), 1.0, overwrite=True).coefficients[0] == pytest.approx(0.5)


def test_memory_is_said_beforehand():
    assert memory_needed(10_000, 10, block=10_000) == pytest.approx(8e8 + 3 * 8 * 1024 * 10_000, rel=0.01)
    assert memory_needed(50_000, 10, block=4096) < 1.35 * 8 * 50_000**2
    assert CpuAlgebra().free_bytes() > 0


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16_000, 46_340, 46_341])
def test_a_cpu_solves_where_lapack_crashes_and_on_either_side_of_32_bit_indices(rows):
    needed = memory_needed(rows, 1, block=CpuAlgebra().block_rows(rows))
    if needed > CpuAlgebra().free_bytes():
        pytest.skip(f"needs {needed / 1e9:.1f} GB of free memory")
    features = np.random.default_rng(0).standard_normal((rows, 20))
    K = np.empty((rows, rows))
    for part in spans(rows, 1024):  # dsyrk of OpenBLAS crashes at 46,340 rows
        np.matmul(features[part], features.T, out=K[part])
    Y = np.ones((rows, 1))
    solution = solve_ridge(K, Y, 100.0, overwrite=True)
    # The exact result by Woodbury's identity, from a 20 × 20 matrix.
    exact = (Y - features @ np.linalg.solve(100.0 * np.eye(20) + features.T @ features, features.T @ Y)) / 100.0
    np.testing.assert_allclose(solution.coefficients, exact, rtol=0, atol=1e-12)
    assert solution.residual < 1e-12
