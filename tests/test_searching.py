"""The search for kernels: scores are the solver's, rounds halve candidates, sums are free, errors say why."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.pipeline import Pipeline

import tangentless as tl
from shell import run
from tangentless.classical import Gaussian
from tangentless.errors import InputError, ParameterError, TangentlessError
from tangentless.expression import kernel_of_text
from tangentless.kernel import CompositionalKernel
from tangentless.solve import factorise, solve_ridge

DIGITS = load_digits(return_X_y=True)
VECTORS, LABELS = DIGITS[0][:400] / 16, DIGITS[1][:400]
IMAGES = VECTORS.reshape(-1, 8, 8, 1)
KERNELS = ("relu", "relu relu", "gaussian", Gaussian(0.05), Gaussian(5.0))


def test_scores_are_those_of_the_solver_on_all_images():
    found = tl.search(KERNELS, VECTORS, LABELS, subset=400)
    assert len(found.trials) == 5
    K, Y = found.best.kernel(VECTORS), np.eye(10)[LABELS]
    order = np.random.default_rng(0).permutation(400)
    solution = solve_ridge(K[np.ix_(order, order)], Y[order], found.best.ridge)
    assert found.best.accuracy == np.mean(solution.leave_one_out.argmax(axis=1) == LABELS[order])
    assert found.best.accuracy == max(trial.accuracy for trial in found.trials)
    assert found.best.accuracy > 0.9
    factor = factorise(K, found.best.ridge)
    scale = factor.misfits(Y) / 400
    assert found.best.log_likelihood == pytest.approx(factor.log_likelihood(Y, scale), rel=1e-6)


@pytest.mark.parametrize("criterion", ["loo", "marginal likelihood"])
def test_each_round_has_twice_the_images_and_half_the_candidates(criterion):
    seen = []
    found = tl.search(KERNELS, VECTORS, LABELS, criterion, subset=100, progress=seen.append)
    assert [trial.rows for trial in found.trials] == [400, 400, 200, 200, 200, 100, 100, 100, 100, 100]
    assert len(seen) == 10
    whole = tl.search(KERNELS, VECTORS, LABELS, criterion, subset=400)
    assert found.best.kernel == whole.best.kernel
    assert found.best.ridge == whole.best.ridge


def test_a_search_that_is_verbose_tells_of_every_trial(caplog):
    caplog.set_level("INFO", "tangentless")
    found = tl.search(KERNELS, VECTORS[:60], LABELS[:60], backend="reference", verbose=True)
    told = [line for line in caplog.messages if "kernel" in line and "ridge" in line]
    assert len(told) == len(found.trials)


def test_numbers_are_scored_by_their_squared_error_and_likelihood():
    X = np.random.default_rng(0).standard_normal((120, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(1).standard_normal(120)
    kernels = [Gaussian(gamma) for gamma in (1e-4, 0.1, 0.5, 100.0)]
    for criterion in ("loo", "marginal likelihood"):
        found = tl.search(kernels, X, y, criterion)
        assert found.best.kernel in kernels[1:3]
        assert found.best.accuracy is None
    assert isinstance(found.model(), tl.KernelRidgeRegressor)


def test_weighted_sums_compute_no_entries_and_win_where_they_should(monkeypatch):
    pairs = []
    original = CompositionalKernel.on_device

    def counted(self, device, X, Z=None, **options):
        pairs.append(len(X) * (len(X) + 1) // 2 if Z is None else len(X) * len(Z))
        return original(self, device, X, Z, **options)

    monkeypatch.setattr(CompositionalKernel, "on_device", counted)
    found = tl.search(["relu", "gaussian"], VECTORS[:200], LABELS[:200], subset=100, mix=2)
    assert sum("+" in repr(trial.kernel) for trial in found.trials) >= 3
    assert sum(pairs) == 2 * 200 * 201 // 2  # every pair once for each kernel
    mixed = next(trial for trial in found.trials if "+" in repr(trial.kernel))
    K = mixed.kernel(VECTORS[:200])
    order = np.random.default_rng(0).permutation(200)[: mixed.rows]
    solution = solve_ridge(K[np.ix_(order, order)], np.eye(10)[LABELS[order]], mixed.ridge)
    assert mixed.accuracy == np.mean(solution.leave_one_out.argmax(axis=1) == LABELS[order])


def test_whitening_is_searched_too_and_comes_with_the_model(tmp_path):
    kernels = ["conv3 relu globalpool normalize relu", "conv3 relu pool2 conv3 relu globalpool normalize relu"]
    found = tl.search(kernels, IMAGES[:100], LABELS[:100], whitening=[None, 1e-3, 10.0], backend="cpu")
    assert {trial.whitening for trial in found.trials} == {None, 1e-3, 10.0}
    whitened = [trial for trial in found.trials if trial.whitening == 1e-3]
    model = type(found)(found.criterion, tuple(whitened), found.regression).model(backend="cpu")
    assert isinstance(model, Pipeline)
    assert model.fit(IMAGES[:100], LABELS[:100]).predict(IMAGES[100:110]).shape == (10,)
    assert "| kernel | whitening |" in str(found)
    found.plot(tmp_path / "search.png")
    assert (tmp_path / "search.png").stat().st_size > 10_000


def test_what_is_positive_definite_at_no_ridge_comes_last():
    found = tl.search(["relu", Gaussian(1e-14)], VECTORS[:50], LABELS[:50], ridges=[0.0])
    assert found.best.kernel == tl.kernel("relu")
    assert found.trials[-1].squared_error == np.inf


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        ({"criterion": "luck"}, ParameterError, "criterion is 'loo' or 'marginal likelihood', not 'luck'"),
        ({"kernels": []}, ParameterError, "at least one kernel"),
        ({"kernels": "relu"}, ParameterError, r"kernels is a list, such as \['relu'\]"),
        ({"whitening": []}, ParameterError, "at least one whitening"),
        ({"subset": 1}, ParameterError, "from 2 to the 20 images"),
        ({"subset": 2.5}, ParameterError, "subset must be a whole number"),
        ({"largest": 10.0}, ParameterError, "largest must be a whole number"),
        ({"seed": -1}, ParameterError, "seed must be a whole number from 0"),
        ({"mix": -1}, ParameterError, "mix must be a whole number from 0"),
        ({"refine": 0.5}, ParameterError, "refine must be a whole number from 0"),
        ({"largest": 21}, ParameterError, "from 2 to the 20 images"),
        ({"y": np.arange(19)}, InputError, "X has 20 rows, but y is of shape"),
        ({"y": np.full(20, np.nan)}, InputError, "NaN"),
        ({"y": np.zeros(20, int)}, InputError, "one class"),
        ({"X": np.full((20, 3), np.nan)}, InputError, "NaN"),
        ({"ridges": [-1.0]}, ParameterError, "ridge must be"),
    ],
)
def test_bad_input_is_refused(change, error, complaint):
    given = {"kernels": ["relu"], "X": np.ones((20, 3)) + np.eye(20, 3), "y": np.arange(20) % 2, "backend": "reference"}
    with pytest.raises(error, match=complaint):
        tl.search(**(given | change))


def test_the_command_prints_a_table_and_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", VECTORS[:60])
    np.save("y.npy", LABELS[:60])
    arguments = ["search", "x.npy", "y.npy", "relu", "Gaussian(gamma=0.05)", "--subset", "30", "--picture", "p.svg"]
    result = run(*arguments, "--backend", "reference")
    assert result.exit_code == 0, result.output
    assert "best first, by loo" in result.output
    assert "Gaussian(gamma=0.05)" in result.output
    assert (tmp_path / "p.svg").exists()
    for more, complaint in [
        (["--whitening", "much"], "--whitening is an epsilon such as 0.1, or none; not 'much'"),
        (["--criterion", "luck"], "criterion is"),
        (["--picture", "p.gif"], "--picture must name a .png or .svg file"),
        (["--picture", "p.svg"], "there already"),
        (["rulu"], "relu"),
    ]:
        result = run("search", "x.npy", "y.npy", "relu", *more)
        assert result.exit_code == 2
        assert complaint in result.output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NTK(3)", "NTK(depth=3, fixed=0)"),
        ("NTK( depth = 3 )", "NTK(depth=3, fixed=0)"),
        ("Gaussian(0.01)", "Gaussian(gamma=0.01)"),
        ("Gaussian(gamma=0.010)", "Gaussian(gamma=0.01)"),
        ("0.5*Gaussian(gamma=0.01)", "0.5 * Gaussian(gamma=0.01)"),
        (" kernel('relu')+NTK(2) ", "kernel('relu') + NTK(depth=2, fixed=0)"),
        ("relu", "kernel('relu')"),
        ("ReLU() Gaussian(0.5)", "kernel('relu gaussian(0.5)')"),
    ],
)
def test_the_command_reads_kernels_as_users_write_them(text, shown):
    assert repr(kernel_of_text(text)) == shown


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Gausian(gamma=0.01)", r"no kernel Gausian; did you mean 'Gaussian'\?"),
        ("0.5*Gausian(0.01)", "did you mean 'Gaussian'"),
        ("Gaussian(gama=0.01)", "Gaussian.* 'gama'"),
        ("NTK(0)", "depth"),
        ("kernel('mirtle5')", "did you mean 'myrtle5'"),
        ("mirtle5", "did you mean 'myrtle5'"),
        ("conv3 rulu(2)", "unknown layer"),
        ("NTK('a' * 1000000000)", "no sum or product"),
    ],
)
def test_the_command_says_why_a_text_is_no_kernel(text, complaint):
    with pytest.raises(TangentlessError, match=complaint):
        kernel_of_text(text)
