"""Bad parameters and input of the estimators: errors say what is wrong and what to do."""

import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from tangentless.errors import ArchitectureError, BackendError, InputError, NotPositiveDefinite, ParameterError
from tangentless.estimators import KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC
from test_estimators import BOTH, SMALL, TINY, digits, random_images, random_labels


@BOTH
def test_an_unfitted_model_says_so(estimator):
    with pytest.raises(NotFittedError):
        estimator().predict(random_images(2))


@BOTH
@pytest.mark.parametrize("ridge", [-1.0, float("nan"), float("inf"), "small", None])
def test_a_bad_ridge_is_refused(estimator, ridge):
    with pytest.raises(ParameterError, match="ridge"):
        estimator(SMALL, ridge=ridge).fit(random_images(4), random_labels(4, 2))


@BOTH
def test_flips_of_what_has_no_mirror_image_are_refused(estimator):
    with pytest.raises(ParameterError, match=r"flips=True needs images.*kernel\.mirrored\(\)"):
        estimator("precomputed", flips=True).fit(np.eye(4), random_labels(4, 2))
    with pytest.raises(InputError, match="vectors have no mirror image"):
        estimator("relu", flips=True).fit(np.eye(4), random_labels(4, 2))


@pytest.mark.parametrize(
    ("parameters", "error", "complaint"),
    [
        ({"kernel": "myrtle6"}, ArchitectureError, "did you mean"),
        ({"kernel": 3}, ArchitectureError, "a name, a text form, a list of layers or an Architecture"),
        ({"kernel": "conv3 relu pool3 globalpool"}, ArchitectureError, "pool3 does not divide"),
        ({"backend": "abacus"}, BackendError, "abacus"),
        ({"precision": "float16"}, ParameterError, "float16"),
    ],
)
def test_a_bad_parameter_is_refused(parameters, error, complaint):
    with pytest.raises(error, match=complaint):
        KernelRidgeClassifier(**({"kernel": SMALL} | parameters)).fit(random_images(4), random_labels(4, 2))


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ([0, 1, 0], r"inconsistent numbers of samples: \[4, 3\]"),
        (np.array([0.0, 1.0, np.nan, 1.0]), "y contains NaN"),
        ([0, 1, np.nan, 1], "y contains nan in row 2"),
        (["a", "b", None, "a"], "y contains None in row 2"),
        (np.array(["a", "b", np.nan, "a"], dtype=object), "y contains nan in row 2"),
        (np.array(["a", 1] * 2, dtype=object), r"y mixes labels of types int, str; .*y\.astype\(str\)"),
        ([1, 1, 1, 1], r"one class, .*1.*; a classifier needs at least two"),
        ([0.1, 0.2, 0.3, 0.4], "Unknown label type: continuous"),
        (np.eye(4), "1d array"),
        (None, "y to be passed"),
    ],
)
def test_bad_labels_are_refused(labels, complaint):
    with pytest.raises(InputError, match=complaint):
        KernelRidgeClassifier(SMALL).fit(random_images(4), labels)


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        ([0.0, 1.0, 0.0], r"inconsistent numbers of samples: \[4, 3\]"),
        ([0.0, 1.0, np.inf, 1.0], "y contains infinity"),
        (["a", "b", "a", "b"], "must hold real numbers"),
        (np.ones((4, 2, 2)), "dim 3"),
        (None, "y to be passed"),
    ],
)
def test_bad_targets_are_refused(targets, complaint):
    with pytest.raises(InputError, match=complaint):
        KernelRidgeRegressor(SMALL).fit(random_images(4), targets)


@BOTH
@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (random_images(4)[:, 0, 0, 0], "Expected 2D array"),
        (np.where(np.arange(4)[:, None, None, None] == 2, np.nan, random_images(4)), r"NaN .*row 2"),
        (random_images(0), "0 sample"),
        (random_images(1), r"1 sample.* minimum of 2"),
        (random_images(4, (8, 8, 0)), "empty"),
        (random_images(4, (2, 2, 2, 2)), "5 axes"),
        ([np.ones((8, 8, 1)), np.ones((4, 4, 1))], "inhomogeneous"),
        (random_images(4) * 1j, "Complex data"),
    ],
)
def test_bad_images_are_refused(estimator, rows, complaint):
    with pytest.raises(InputError, match=complaint):
        estimator(SMALL).fit(rows, random_labels(len(rows), 2))


@BOTH
def test_predicting_images_of_another_shape_names_both_shapes(estimator):
    model = estimator(SMALL).fit(random_images(4), random_labels(4, 2))
    for shape in ((8, 6, 1), (8, 8, 3), (8, 1), (64,)):
        with pytest.raises(InputError) as caught:
            model.predict(random_images(2, shape))
        assert f"shape {shape}, but {estimator.__name__} was fitted to rows of shape (8, 8, 1)" in str(caught.value)
    assert str(caught.value).endswith("X.reshape(-1, 8, 8, 1)")  # for the last shape, of flat rows


@BOTH
def test_predicting_from_a_bad_matrix_is_refused(estimator):
    model = estimator("precomputed").fit(np.eye(4), random_labels(4, 2))
    with pytest.raises(InputError, match=r"X has 3 features, but .* is expecting 4"):
        model.predict(np.ones((2, 3)))
    with pytest.raises(InputError, match="NaN"):
        model.predict(np.full((2, 4), np.nan))
    with pytest.raises(InputError, match="square matrix"):
        estimator("precomputed").fit(np.ones((4, 3)), random_labels(4, 2))


@pytest.mark.parametrize("flips", [False, True])
def test_at_ridge_zero_duplicate_images_are_named_and_the_suggested_ridge_works(flips):
    images, labels = random_images(10), random_labels(10)
    images[7] = images[2]
    model = KernelRidgeClassifier(SMALL, ridge=0, flips=flips)
    with pytest.raises(NotPositiveDefinite, match=r"1 pair of rows are duplicates \(2 and 7\)") as caught:
        model.fit(images, labels)
    suggested = re.search(r"ridge=(\S+) would work", str(caught.value)).group(1)
    assert np.isfinite(model.set_params(ridge=float(suggested)).fit(images, labels).loo_decision_).all()


@pytest.mark.parametrize("flips", [False, True])
def test_near_duplicates_at_ridge_zero_are_told_of_float64_which_fits_them(flips):
    images, labels = digits(40)
    noise = np.random.default_rng(0).standard_normal(images.shape)
    images, labels = np.concatenate([images, images + 1e-3 * noise]), np.concatenate([labels, labels])
    model = KernelRidgeClassifier(SMALL, ridge=0, flips=flips)
    with pytest.raises(NotPositiveDefinite, match="precision='float64': no two rows are the same") as caught:
        model.fit(images, labels)
    assert "is not a kernel matrix" not in str(caught.value)
    assert model.set_params(precision="float64").fit(images, labels).loo_score_ > 0.8


def test_duplicates_are_not_told_of_float64():
    images, labels = digits(20)
    with pytest.raises(NotPositiveDefinite) as caught:
        KernelRidgeClassifier(SMALL, ridge=0).fit(np.concatenate([images, images[:2]]), [*labels, 0, 1])
    assert "float64" not in str(caught.value)


@pytest.mark.parametrize("model", [KernelRidgeClassifier(TINY), KernelSVC(TINY), KernelRidgeRegressor(TINY)])
@pytest.mark.parametrize("flips", ["no", 1, None])
def test_flips_are_true_or_false(model, flips):
    with pytest.raises(ParameterError, match="flips must be True or False"):
        clone(model).set_params(flips=flips).fit(random_images(4), random_labels(4, 2))


def test_tensors_are_read_and_wrong_axes_are_named():
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    images, labels = random_images(6), [0, 1] * 3
    model = KernelRidgeClassifier(TINY, backend="reference").fit(torch.from_numpy(images.copy()), torch.tensor(labels))
    np.testing.assert_array_equal(model.X_fit_, images)
    with pytest.warns(UserWarning, match="requires gradients"):
        model.predict(torch.from_numpy(images.copy()).requires_grad_())
    for given, hint in (
        (images.transpose(0, 3, 1, 2), r"channels come first in it: X\.transpose"),
        (images[0], r"a single one is X\[None\]"),
        (images[..., 0], r"add a channel axis, X\[\.\.\., None\]"),
    ):
        with pytest.raises(InputError, match=hint):
            model.predict(given)


@pytest.mark.parametrize(
    ("model", "error", "complaint"),
    [
        (KernelSVC(SMALL, C=0.0), ParameterError, "C must be a finite number above 0 or 'scale', not 0.0"),
        (KernelSVC(SMALL, C="1"), ParameterError, "C must be"),
        (KernelRidgeClassifier(SMALL, tilt="much"), ParameterError, "tilt must be"),
        (KernelRidgeClassifier(SMALL, ridge="lo"), ParameterError, "ridge must be .* at least 0, or 'loo', not 'lo'"),
        (KernelRidgeClassifier(SMALL, class_weight={0: 1, 1: -1}), ParameterError, "class weights must be finite"),
        (KernelRidgeClassifier(SMALL, class_weight="even"), InputError, "balanced"),
    ],
)
def test_new_parameters_are_checked(model, error, complaint):
    with pytest.raises(error, match=complaint):
        model.fit(random_images(4), random_labels(4, 2))


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ([1.0, 1.0], "sample_weight.shape"),
        ([1.0, -1.0, 1.0, 1.0], "Negative values"),
        ([1.0, np.nan, 1.0, 1.0], "NaN"),
        ([0.0, 0.0, 0.0, 0.0], "all sample weights are zero|at least one non-zero"),
        ([1.0, 0.0, 1.0, 0.0], "1 of 2 classes have no row with a weight above 0"),
    ],
)
@pytest.mark.parametrize("estimator", [KernelRidgeClassifier, KernelSVC])
def test_bad_sample_weights_are_refused(estimator, weights, complaint):
    with pytest.raises(InputError, match=complaint):
        estimator(SMALL).fit(random_images(4), [0, 1, 0, 1], sample_weight=weights)


@pytest.mark.parametrize("estimator", [KernelRidgeClassifier, KernelSVC])
@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 1.0, 1.0, 0.0]])
def test_an_asymmetric_matrix_is_refused_unless_the_row_has_no_weight(estimator, weights):
    K, labels = np.eye(5), [0, 1, 0, 1, 0]
    K[4, 1] = 0.5
    if weights is not None:
        estimator("precomputed").fit(K, labels, weights)
        K[3, 1] = 0.4
    with pytest.raises(InputError, match=r"K is not symmetric: K\[\d, \d\] = 0"):
        estimator("precomputed").fit(K, labels, weights)


@pytest.mark.parametrize("targets", [np.full(4, 3.0), np.full((4, 2), [1.0, 2.0])])
def test_a_constant_target_is_refused(targets):
    with pytest.raises(InputError, match="all rows have the same target"):
        KernelRidgeRegressor(SMALL).fit(random_images(4), targets)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"landmarks": 0}, "from 1 to 4 can be chosen as landmarks, not 0"),
        ({"landmarks": 5}, "from 1 to 4 can be chosen as landmarks, not 5"),
        ({"landmarks": 2.0}, "from 1 to 4 can be chosen as landmarks, not 2.0"),
        ({"landmarks": 2, "landmarks_by": "luck"}, "landmarks_by is 'variance' or 'random', not 'luck'"),
        ({"landmarks": 2, "tilt": 0.3}, "tilt does not work with landmarks"),
        ({"landmarks": 2, "ridge": 0.0}, "landmarks need a ridge above 0"),
    ],
)
def test_bad_landmarks_are_refused(parameters, complaint):
    with pytest.raises(ParameterError, match=complaint):
        KernelRidgeClassifier(SMALL, **parameters).fit(random_images(4), random_labels(4, 2))
