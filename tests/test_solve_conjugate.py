"""Conjugate gradients: the results of Cholesky, from arrays, stores and Dask; stopped runs continue."""

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tangentless.errors import InputError, NotPositiveDefinite, ParameterError
from tangentless.gram import gram
from tangentless.solve import NotConverged, solve_conjugate, solve_ridge

KERNEL = "normalize relu"


def digits(rows):
    return load_digits(return_X_y=True)[0][:rows], np.eye(10)[load_digits(return_X_y=True)[1][:rows]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    X, Y = digits(300)
    place = tmp_path_factory.mktemp("store") / "k.zarr"
    return gram(KERNEL, X, store=place, backend="cpu", tile=64, progress=False), Y


@pytest.mark.parametrize("kind", ["array", "store", "dask"])
def test_the_answer_is_that_of_cholesky(stored, kind):
    K, Y = stored
    given = {"array": np.asarray(K), "store": K, "dask": K.to_dask()}[kind]
    exact = solve_ridge(K, Y, 1e-3).coefficients
    found = solve_conjugate(given, Y, 1e-3, tolerance=1e-10, landmarks=100)
    assert found.residual <= 1e-10
    # The condition number is 3e5, so a residual of 1e-10 leaves an error of at most 3e-5 in the coefficients. The error
    # in predictions is far smaller, since directions of small eigenvalues contribute little to them.
    np.testing.assert_allclose(np.asarray(K) @ found.coefficients, np.asarray(K) @ exact, rtol=0, atol=1e-8)
    one = solve_conjugate(given, Y[:, 3], 1e-3, tolerance=1e-10, landmarks=100)
    np.testing.assert_allclose(one.coefficients, found.coefficients[:, 3], atol=1e-5)


def test_the_preconditioner_saves_most_of_the_steps(stored):
    K, Y = stored
    steps = [solve_conjugate(K, Y, 1e-2, landmarks=count).steps for count in (0, 30, 300)]
    assert steps[0] > 2 * steps[1] > 2 * steps[2]
    assert steps[2] <= 3  # all rows are landmarks, so the preconditioner is the inverse


def test_a_stopped_run_goes_on_from_its_checkpoint_with_the_same_numbers(stored, tmp_path):
    K, Y = stored
    whole = solve_conjugate(K, Y, 1e-3, landmarks=20)
    place = tmp_path / "run.npz"

    def stop(step):
        if step.number == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_conjugate(K, Y, 1e-3, landmarks=20, checkpoint=place, checkpoint_seconds=0, progress=stop)
    numbers = []
    resumed = solve_conjugate(
        K, Y, 1e-3, landmarks=20, checkpoint=place, progress=lambda step: numbers.append(step.number)
    )
    assert numbers[0] == 8
    np.testing.assert_array_equal(resumed.coefficients, whole.coefficients)
    with pytest.raises(InputError, match="checkpoint of another system"):
        solve_conjugate(K, Y, 1e-2, landmarks=20, checkpoint=place)
    place.write_bytes(place.read_bytes()[:-300])
    with pytest.raises(InputError, match=r"run\.npz"):
        solve_conjugate(K, Y, 1e-3, landmarks=20, checkpoint=place)


def test_progress_tells_residual_and_time_left(stored, monkeypatch):
    K, Y = stored
    steps = []
    clock = itertools.count(100.0)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))  # every call is a second later
    solution = solve_conjugate(K, Y, 1e-3, landmarks=20, progress=steps.append)
    assert [step.number for step in steps] == list(range(1, solution.steps + 1))
    assert steps[-1].residual <= 1e-8
    assert steps[-1].seconds_left == 0
    middle = steps[len(steps) // 2]
    total = steps[-1].seconds
    assert 0 < middle.seconds_left < 10 * total


def test_a_run_may_stop_when_predictions_of_held_out_rows_no_longer_improve(stored):
    K, Y = np.asarray(stored[0]), stored[1]
    trained, held = np.arange(250), np.arange(250, 300)
    inner, between = K[np.ix_(trained, trained)], K[np.ix_(held, trained)]
    errors, options = [], {"landmarks": 60, "tolerance": 1e-12}
    whole = solve_conjugate(inner, Y[:250], 1e-3, **options)
    early = solve_conjugate(
        inner, Y[:250], 1e-3, held_out=(between, Y[250:]), progress=lambda s: errors.append(s.held_out_error), **options
    )
    assert early.steps < whole.steps
    assert early.residual > 1e-12
    assert len(errors) == early.steps
    assert errors[-1] < 1.05 * np.mean((between @ whole.coefficients - Y[250:]) ** 2)
    assert errors[-1] == pytest.approx(np.mean((between @ early.coefficients - Y[250:]) ** 2))


def test_a_run_killed_again_and_again_stops_early_where_one_that_was_not_does(stored, tmp_path):
    K, Y = np.asarray(stored[0]), stored[1]
    trained, held = np.arange(250), np.arange(250, 300)
    inner, rows = K[np.ix_(trained, trained)], (K[np.ix_(held, trained)], Y[250:])
    options = {"landmarks": 0, "tolerance": 1e-12, "held_out": rows, "patience": 4}
    whole = solve_conjugate(inner, Y[:250], 1e-3, **options)
    options |= {"checkpoint": tmp_path / "run.npz", "checkpoint_seconds": 0}

    def stop(step):
        if step.number % 2 == 0:
            raise KeyboardInterrupt

    for _ in range(whole.steps // 2):
        with pytest.raises(KeyboardInterrupt):
            solve_conjugate(inner, Y[:250], 1e-3, progress=stop, **options)
    for _ in range(2):  # the second time it is over already
        again = solve_conjugate(inner, Y[:250], 1e-3, **options)
        assert again.steps == whole.steps
        np.testing.assert_array_equal(again.coefficients, whole.coefficients)
    options["held_out"] = (rows[0][:20], rows[1][:20])  # other rows have counts of their own
    assert solve_conjugate(inner, Y[:250], 1e-3, **options).steps >= whole.steps + 4


def test_held_out_rows_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="held_out, in its targets, holds NaN"):
        solve_conjugate(np.eye(4), np.ones(4), 1.0, landmarks=2, held_out=(np.ones((3, 4)), np.array([1, np.nan, 1])))
    with pytest.raises(InputError, match="held_out is a pair"):
        solve_conjugate(np.eye(4), np.ones(4), 1.0, landmarks=2, held_out=np.ones((3, 4)))
    for held_out in (
        (np.ones(4), 1.0),
        (np.ones((3, 5)), np.ones(3)),
        (np.ones((3, 4)), np.ones(2)),
        (np.ones((3, 4)), np.ones((3, 2))),
    ):
        with pytest.raises(InputError, match="held_out is"):
            solve_conjugate(np.eye(4), np.ones(4), 1.0, landmarks=2, held_out=held_out)
    with pytest.raises(ParameterError, match="patience must be at least 1"):
        solve_conjugate(np.eye(4), np.ones(4), 1.0, landmarks=2, held_out=(np.ones((3, 4)), np.ones(3)), patience=0)


def test_steps_that_do_not_suffice_are_an_error_that_keeps_what_was_done(stored, tmp_path):
    K, Y = stored
    place = tmp_path / "run.npz"
    with pytest.raises(NotConverged, match=r"after 3 steps the residual is .* use more landmarks"):
        solve_conjugate(K, Y, 1e-6, landmarks=0, most_steps=3, checkpoint=place)
    assert place.exists()


def test_columns_of_zeros_and_repeated_columns_are_no_trouble(stored):
    K, Y = stored
    Y = np.column_stack([np.zeros(300), Y[:, 1], Y[:, 1]])
    found = solve_conjugate(K, Y, 1e-2, landmarks=50).coefficients
    assert not found[:, 0].any()
    # BLAS may sum the last column in another order. Both residuals are at most 1e-8, and the smallest eigenvalue of
    # K + ridge I is the ridge.
    assert np.linalg.norm(found[:, 1] - found[:, 2]) <= 2 * 1e-8 * np.linalg.norm(Y[:, 1]) / 1e-2


def test_a_matrix_that_is_not_positive_definite_is_noticed():
    K = np.diag([1.0, 2.0, -3.0])
    with pytest.raises(NotPositiveDefinite, match="use a larger ridge"):
        solve_conjugate(K, np.ones(3), 0.1, landmarks=0)
    with pytest.raises(NotPositiveDefinite, match="between landmarks"):
        solve_conjugate(K, np.ones(3), 0.1, landmarks=3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ridge": 0.0}, "need a ridge above 0"),
        ({"ridge": -1.0}, "ridge must be"),
        ({"tolerance": 0.0}, "tolerance must lie between 0 and 1"),
        ({"landmarks": 5}, "landmarks must be a number from 0 to the 4 rows of K"),
        ({"landmarks": 2.5}, "landmarks must be a number from 0 to the 4 rows of K"),
        ({"most_steps": 0}, "most_steps must be at least 1"),
    ],
)
def test_bad_options_are_refused(options, complaint):
    with pytest.raises(ParameterError, match=complaint):
        solve_conjugate(np.eye(4), np.ones(4), **({"ridge": 1.0, "landmarks": 2} | options))


def test_a_matrix_that_is_not_square_is_refused(tmp_path):
    import dask.array

    with pytest.raises(InputError, match="square"):
        solve_conjugate(dask.array.ones((4, 3)), np.ones(4), 1.0)
    with pytest.raises(InputError, match="square"):
        solve_conjugate(np.ones((4, 3)), np.ones(4), 1.0)
    X = np.eye(6)
    two = gram(KERNEL, X, X[:4], store=tmp_path / "two.zarr", backend="reference", progress=False)
    with pytest.raises(InputError, match="two sets"):
        solve_conjugate(two, np.ones(6), 1.0)
