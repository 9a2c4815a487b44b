"""Saliency and attacks: gradients of scores, and images that stay within eps and are misread."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

import tangentless as tl
from conftest import frozen
from tangentless.attacks import fgsm, pgd, robust_accuracies
from tangentless.demo import load_digits
from tangentless.errors import InputError, ParameterError

KERNEL = "conv3 relu pool2 conv3 relu globalpool normalize relu"


@pytest.fixture(scope="module")
def fitted():
    split = load_digits(seed=0)
    model = tl.KernelRidgeClassifier(KERNEL, backend="cpu", precision="float64")
    model.fit(split.train_images[:100], split.train_labels[:100])
    return model, frozen(split.test_images[:20].astype(np.float64)), frozen(split.test_labels[:20])


@pytest.mark.parametrize("flips", [False, True])
def test_saliency_is_the_slope_of_the_winning_score(fitted, flips):
    model, X, _ = fitted
    if flips:
        images, labels = X, fitted[2]
        model = tl.KernelRidgeClassifier(KERNEL, flips=True, backend="reference").fit(images, labels)
    X = X[:2] + 0.05
    step = 1e-5 * np.random.default_rng(0).standard_normal(X.shape)
    winners = model.decision_function(X).argmax(axis=1)
    above, below = (model.decision_function(X + sign * step)[np.arange(2), winners] for sign in (1, -1))
    found = (model.saliency(X) * 2 * step).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(found, above - below, rtol=1e-5)


@pytest.mark.parametrize("attack", [fgsm, pgd])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.05), ("l2", 0.5)])
def test_attacks_stay_within_eps_and_lower_the_accuracy(fitted, attack, norm, eps):
    model, X, y = fitted
    moved = attack(model, X, y, eps, norm=norm)
    change = (moved - X).reshape(len(X), -1)
    lengths = np.abs(change).max(axis=1) if norm == "linf" else np.linalg.norm(change, axis=1)
    assert lengths.max() <= eps * (1 + 1e-12)
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert model.score(moved, y) < model.score(X, y)


def test_more_room_and_more_steps_do_more_harm(fitted):
    model, X, y = fitted
    found = robust_accuracies(model, X, y, eps=(0.02, 0.1), steps=5)
    assert found["clean"] >= found["fgsm 0.02"] >= found["fgsm 0.1"] >= found["pgd 0.1"]


def test_tables_of_robust_accuracies_are_of_the_norm_and_range_that_are_asked_for(fitted):
    model, X, y = fitted
    centred, options = X - 0.5, {"norm": "l2", "clip": None}
    found = robust_accuracies(model, centred, y, eps=0.5, steps=3, **options)
    moved = fgsm(model, centred, y, 0.5, **options), pgd(model, centred, y, 0.5, steps=3, **options)
    assert list(found.values()) == [model.score(one, y) for one in (centred, *moved)]
    with pytest.raises(ParameterError, match="eps is a finite number above 0, not 'a'"):
        robust_accuracies(model, X, y, eps=("a",))
    with pytest.raises(ParameterError, match="eps is a finite number above 0, not array"):
        robust_accuracies(model, X, y, eps=np.array(0.1))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seed": -1}, ParameterError, "seed is a whole number"),
        ({"eps": 0.0}, ParameterError, "eps is a finite number above 0"),
        ({"eps": "a"}, ParameterError, "eps is a finite number above 0, not 'a'"),
        ({"eps": None}, ParameterError, "eps is a finite number above 0"),
        ({"step_size": "a"}, ParameterError, "finite size"),
        ({"clip": "x"}, ParameterError, "two numbers such as"),
        ({"clip": 1.0}, ParameterError, "two numbers such as"),
        ({"clip": ("0", "1")}, ParameterError, "two numbers such as"),
        ({"clip": (0, 1, 2)}, ParameterError, "two numbers such as"),
        ({"clip": (1.0, 0.0)}, ParameterError, "two numbers such as"),
        ({"norm": "l1"}, ParameterError, "'linf' or 'l2'"),
        ({"y": np.zeros(3)}, InputError, "one label per image"),
        ({"y": np.full(20, 11)}, InputError, "not fitted to"),
        ({"clip": (0.0, 0.5)}, InputError, "outside clip"),
        ({"steps": 0}, ParameterError, "at least one step"),
        ({"step_size": -1.0}, ParameterError, "finite size"),
        ({"model": make_pipeline(tl.ZCA(), tl.KernelRidgeClassifier())}, ParameterError, "for a pipeline"),
        ({"model": tl.KernelRidgeClassifier()}, ParameterError, "fitted"),
    ],
)
def test_what_cannot_be_attacked_is_refused(fitted, changes, error, message):
    model, X, y = fitted
    with pytest.raises(error, match=message):
        pgd(**{"model": model, "X": X, "y": y, "eps": 0.1, **changes})


def test_a_model_of_a_matrix_has_no_saliency(fitted):
    _, _, y = fitted
    model = tl.KernelRidgeClassifier("precomputed").fit(np.eye(len(y)), y)
    with pytest.raises(ParameterError, match="has no pixels"):
        model.saliency(np.eye(len(y)))


@pytest.mark.parametrize("targets", [(), (2,)])
def test_gradients_of_regressors_are_slopes(fitted, targets):
    _, X, _ = fitted
    rng = np.random.default_rng(0)
    Y, weights, step = (rng.standard_normal(shape) for shape in ((20, *targets), (3, *targets), (3, 8, 8, 1)))
    model = tl.KernelRidgeRegressor(KERNEL, 1e-2, backend="cpu", precision="float64", averaging="mirror").fit(X, Y)
    above, below = ((weights * model.predict(X[:3] + sign * 1e-5 * step + 0.05)).sum() for sign in (1, -1))
    found = (model.value_gradient(X[:3] + 0.05, weights) * 2e-5 * step).sum()
    assert found == pytest.approx(above - below, rel=1e-5)
    with pytest.raises(InputError, match="weights has shape"):
        model.value_gradient(X[:3], np.ones((4, *targets)))


def test_tensors_are_attacked_like_arrays(fitted):
    torch = pytest.importorskip("torch")
    model, X, y = fitted
    moved = fgsm(model, torch.tensor(X), torch.tensor(y), 0.1)
    assert np.array_equal(moved, fgsm(model, X, y, 0.1))
    with pytest.warns(UserWarning, match="requires gradients"):
        assert np.array_equal(fgsm(model, torch.tensor(X, requires_grad=True), y, 0.1), moved)
