"""The scikit-learn estimators: conventions, leave-one-out, mirror images, weights and landmarks."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import tangentless as tl
from tangentless import fitting
from tangentless.errors import ParameterError
from tangentless.estimators import KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC
from tangentless.gram import open_gram
from tangentless.layers import Conv, GlobalPool, Normalize, ReLU
from tangentless.processes import GaussianProcessClassifier, GaussianProcessRegressor
from tangentless.solve import solve_ridge

SMALL = "conv3 relu pool2 conv3 relu globalpool normalize relu"
TINY = "conv3 relu globalpool normalize relu"  # with 4×4 images, for the reference backend
BOTH = pytest.mark.parametrize("estimator", [KernelRidgeClassifier, KernelRidgeRegressor])


def random_images(rows, shape=(8, 8, 1), seed=0):
    return np.random.default_rng(seed).standard_normal((rows, *shape))


def random_labels(rows, classes=3, seed=1):
    return np.random.default_rng(seed).permutation(np.arange(rows) % classes)


def digits(rows):
    images, labels = load_digits(return_X_y=True)
    return images[:rows].reshape(rows, 8, 8, 1), labels[:rows]


def failures_of_checks(estimator):
    failures = {}
    if isinstance(estimator, KernelRidgeClassifier) and estimator.ridge != "loo":
        failures["check_class_weight_classifiers"] = (
            "weights act through the ridge, which is small beside these kernels: the noisy points are interpolated"
        )
    if estimator.kernel != "precomputed" and (hasattr(estimator, "predict_proba") or hasattr(estimator, "tilt")):
        if hasattr(estimator, "predict_proba") or estimator.ridge == "loo":
            failures["check_sample_weight_equivalence_on_dense_data"] = (
                "ridge, tilt and probabilities go by leave-one-out, and leaving out one of two copies leaves the other"
            )
    elif estimator.kernel != "precomputed":
        failures["check_sample_weight_equivalence_on_dense_data"] = "libsvm stops at a tolerance of 1e-3"
    if getattr(estimator, "landmarks", None) is not None:
        for kind in ("classifiers", "regressors"):
            failures[f"check_{kind}_train"] = "two landmarks are too few to learn 200 points from"
    if estimator.kernel == "precomputed":
        if hasattr(estimator, "ridge"):
            failures["check_positive_only_tag_during_fit"] = (
                "subtracts the mean of a kernel matrix, which is then no longer positive semidefinite"
            )
        if hasattr(estimator, "predict_proba"):
            failures["check_decision_proba_consistency"] = "fits to a kernel matrix that is not square"
    return failures


# Pairwise checks round a kernel matrix to integers, which leaves it positive definite only with a large ridge.
@parametrize_with_checks(
    [
        estimator(**parameters)
        for estimator in (KernelRidgeClassifier, KernelRidgeRegressor)
        for parameters in (
            {"kernel": "relu relu"},
            {"kernel": "relu", "ridge": "loo", "tilt": "loo"},
            {"kernel": "precomputed", "ridge": 10.0},
            {"kernel": "relu relu", "ridge": 0.1, "landmarks": 2},
        )
    ]
    + [KernelSVC("relu relu"), KernelSVC("precomputed")],
    expected_failed_checks=failures_of_checks,
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def test_on_digits_leave_one_out_tells_the_accuracy_on_unseen_images():
    images, labels = digits(1000)
    model = KernelRidgeClassifier(SMALL).fit(images[:500], labels[:500])
    accuracy = model.score(images[500:], labels[500:])
    assert accuracy > 0.9
    assert abs(model.loo_score_ - accuracy) < 0.05  # a difference of two samples of 500: its standard error is 0.02


@pytest.mark.parametrize("classes", [2, 4])
def test_classifier_leave_one_out_equals_refitting_without_each_image(classes):
    images, labels = random_images(12, (4, 4, 1)), random_labels(12, classes)
    model = KernelRidgeClassifier(TINY, backend="reference").fit(images, labels)
    for i in range(len(images)):
        others = clone(model).fit(np.delete(images, i, axis=0), np.delete(labels, i))
        np.testing.assert_allclose(model.loo_decision_[i], others.decision_function(images[i : i + 1])[0], atol=1e-9)
        assert model.loo_predictions_[i] == others.predict(images[i : i + 1])[0]
    assert model.loo_score_ == np.mean(model.loo_predictions_ == labels)


def test_regressor_leave_one_out_equals_refitting_without_each_image():
    images = random_images(12, (4, 4, 1))
    targets = images.mean(axis=(1, 2, 3))
    model = KernelRidgeRegressor(TINY, backend="reference").fit(images, targets)
    for i in range(len(images)):
        others = clone(model).fit(np.delete(images, i, axis=0), np.delete(targets, i))
        np.testing.assert_allclose(model.loo_predictions_[i], others.predict(images[i : i + 1])[0], atol=1e-9)
    errors = np.sum((targets - model.loo_predictions_) ** 2) / np.sum((targets - targets.mean()) ** 2)
    assert model.loo_score_ == pytest.approx(1 - errors, abs=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("shape", [(4, 6, 2), (5, 2)], ids=["images", "sequences"])
def test_flips_equal_training_on_the_mirror_images_too(shape, ridge):
    images, new = random_images(6, shape), random_images(3, shape, seed=5)
    labels = random_labels(6, 3)
    plain = KernelRidgeClassifier(TINY, ridge, backend="reference")
    flipped = clone(plain).set_params(flips=True).fit(images, labels)

    def fit_doubled(rows):
        return clone(plain).fit(
            np.concatenate([images[rows], np.flip(images[rows], axis=-2)]), np.concatenate([labels[rows]] * 2)
        )

    doubled = fit_doubled(np.arange(6))
    np.testing.assert_allclose(flipped.decision_function(new), doubled.decision_function(new), rtol=0, atol=1e-9)
    np.testing.assert_allclose(flipped.dual_coef_, doubled.dual_coef_[:6], rtol=0, atol=1e-9)


def test_flips_leave_out_an_image_together_with_its_mirror():
    images, targets = random_images(6, (4, 4, 1)), random_images(6, ())
    plain = KernelRidgeRegressor(TINY, 1e-2, backend="reference")
    flipped = clone(plain).set_params(flips=True).fit(images, targets)
    for i in range(6):
        rest = np.delete(np.arange(6), i)
        doubled = np.concatenate([images[rest], np.flip(images[rest], axis=-2)])
        others = clone(plain).fit(doubled, np.concatenate([targets[rest]] * 2))
        np.testing.assert_allclose(flipped.loo_predictions_[i], others.predict(images[i : i + 1])[0], atol=1e-9)


@pytest.mark.parametrize(
    "kernel",
    [
        TINY,
        [Conv(3), ReLU(), GlobalPool(), Normalize(), ReLU()],
        tl.Architecture.parse(TINY),
        tl.kernel(TINY),
    ],
    ids=["text", "layers", "architecture", "kernel"],
)
def test_a_kernel_may_be_given_in_any_form_and_survives_cloning(kernel):
    images, labels = random_images(10, (4, 4, 1)), random_labels(10)
    K = tl.kernel(TINY)(images, backend="reference")
    expected = KernelRidge(alpha=1e-4, kernel="precomputed").fit(K, np.eye(3)[labels]).dual_coef_
    model = clone(KernelRidgeClassifier(kernel, backend="reference")).fit(images, labels)
    np.testing.assert_allclose(model.dual_coef_, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_a_subclass_may_have_a_constructor_of_its_own():
    class Deep(KernelRidgeClassifier):
        def __init__(self, depth=2, ridge=0.1):
            super().__init__(" ".join(["relu"] * depth), ridge, backend="reference")
            self.depth = depth

    model = clone(Deep(depth=3)).fit(np.random.default_rng(0).standard_normal((10, 3)), [0, 1] * 5)
    assert (model.kernel, model.ridge, model.tilt, model.get_params()) == (
        "relu relu relu",
        0.1,
        0.0,
        {"depth": 3, "ridge": 0.1},
    )


def test_a_precomputed_matrix_gives_the_same_model():
    images, labels = random_images(20), random_labels(20)
    kernel, new = tl.kernel(SMALL), random_images(5, seed=9)
    direct = KernelRidgeClassifier(kernel).fit(images, labels)
    precomputed = KernelRidgeClassifier("precomputed").fit(kernel(images), labels)
    np.testing.assert_allclose(
        precomputed.decision_function(kernel(new, images)), direct.decision_function(new), atol=1e-9
    )
    np.testing.assert_array_equal(precomputed.loo_decision_, direct.loo_decision_)
    assert precomputed.X_fit_ is None
    assert precomputed.kernel_ is None


def test_fitting_leaves_a_precomputed_matrix_and_its_images_alone():
    images, labels = random_images(8), random_labels(8)
    K = tl.kernel(SMALL)(images)
    for array, kernel in ((images, SMALL), (K, "precomputed")):
        before = array.copy()
        KernelRidgeClassifier(kernel).fit(array, labels)
        assert np.array_equal(array, before)


def test_grid_search_on_a_precomputed_matrix_slices_rows_and_columns():
    images, labels = digits(60)
    grid = {"ridge": [1e-4, 1e-1, 10.0]}
    direct = GridSearchCV(KernelRidgeClassifier(SMALL), grid, cv=3).fit(images, labels)
    sliced = GridSearchCV(KernelRidgeClassifier("precomputed"), grid, cv=3).fit(tl.kernel(SMALL)(images), labels)
    np.testing.assert_array_equal(sliced.cv_results_["mean_test_score"], direct.cv_results_["mean_test_score"])
    assert sliced.best_params_ == direct.best_params_


def test_grid_search_picks_kernel_and_ridge_together():
    images, labels = digits(60)
    vectors = images.reshape(60, -1)
    kernels = ["relu", tl.kernel("gaussian") + tl.kernel("polynomial2"), [Normalize(), ReLU()]]
    search = GridSearchCV(KernelRidgeClassifier(), {"kernel": kernels, "ridge": [1e-3, 1e9]}, cv=2).fit(vectors, labels)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_["kernel"] in kernels
    assert search.best_params_["ridge"] == 1e-3


def test_the_estimator_ends_a_pipeline_from_pixels_to_labels():
    images, labels = digits(150)
    to_images = FunctionTransformer(lambda rows: rows.reshape(-1, 8, 8, 1))
    pipeline = make_pipeline(StandardScaler(), to_images, KernelRidgeClassifier(SMALL))
    scores = cross_val_score(pipeline, images.reshape(150, -1), labels, cv=3)
    assert scores.min() > 0.8


def test_regression_of_many_targets_is_regression_of_each():
    images, targets = random_images(12), random_images(12, (3,), seed=4)
    together = KernelRidgeRegressor(SMALL).fit(images, targets)
    alone = KernelRidgeRegressor(SMALL).fit(images, targets[:, 1])
    assert together.predict(images).shape == (12, 3)
    np.testing.assert_allclose(together.predict(images)[:, 1], alone.predict(images), atol=1e-12)
    np.testing.assert_allclose(together.loo_predictions_[:, 1], alone.loo_predictions_, atol=1e-12)


def test_two_classes_are_decided_by_the_sign_of_one_value():
    images = random_images(20)
    labels = np.where(images.mean(axis=(1, 2, 3)) > 0, "light", "dark")
    model = KernelRidgeClassifier(SMALL).fit(images, labels)
    assert list(model.classes_) == ["dark", "light"]
    decision = model.decision_function(images)
    assert decision.shape == model.loo_decision_.shape == (20,)
    np.testing.assert_array_equal(model.predict(images), np.where(decision > 0, "light", "dark"))
    signs = KernelRidgeRegressor(SMALL).fit(images, np.where(labels == "light", 1.0, -1.0))
    np.testing.assert_allclose(decision, signs.predict(images), atol=1e-9)


def test_predicting_holds_a_bounded_number_of_kernel_entries(monkeypatch):
    images, labels, new = random_images(10), random_labels(10), random_images(23, seed=3)
    model = KernelRidgeClassifier(SMALL).fit(images, labels)
    at_once = model.decision_function(new)
    sizes, panels = [], model._panels
    monkeypatch.setattr(fitting, "ENTRIES_AT_ONCE", 50)
    monkeypatch.setattr(model, "_panels", lambda *given: (sizes.append(one.size) or one for one in panels(*given)))
    np.testing.assert_allclose(model.decision_function(new), at_once, atol=1e-9)
    assert sizes == [50, 50, 50, 50, 30]


def test_parameters_changed_after_a_fit_take_effect_at_the_next_fit():
    images, labels = random_images(8, (4, 4, 1)), random_labels(8)
    model = KernelRidgeClassifier(TINY, backend="reference").fit(images, labels)
    before = model.decision_function(images)
    model.set_params(kernel="precomputed")
    np.testing.assert_array_equal(model.decision_function(images), before)
    model.set_params(kernel="conv3 relu globalpool").fit(images, labels)
    assert np.abs(model.decision_function(images) - before).max() > 1e-6


EVERY = [KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC, GaussianProcessClassifier, GaussianProcessRegressor]


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("landmarks", [None, 5])
def test_a_fit_that_is_interrupted_leaves_the_model_as_it_was(kind, landmarks):
    X, y, others = random_images(12, (4, 4, 1)), random_labels(12), random_images(12, (4, 4, 1), seed=2)
    model = kind("relu globalpool", backend="reference")
    if landmarks is not None:
        if "landmarks" not in model.get_params():
            pytest.skip("it has no landmarks")
        model.set_params(landmarks=landmarks)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), model.reporting(interrupt):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    before = model.fit(X, y).predict(others)
    with pytest.raises(KeyboardInterrupt), model.set_params(kernel=TINY).reporting(interrupt):
        model.fit(others, y)
    assert np.array_equal(model.predict(others), before)


@pytest.mark.parametrize("kind", EVERY)
def test_images_that_change_after_the_fit_change_no_prediction(kind):
    X, y, others = random_images(12, (4, 4, 1)), random_labels(12), random_images(5, (4, 4, 1), seed=2)
    model = kind("relu globalpool", backend="reference").fit(X, y)
    before = model.predict(others)
    X *= -2.0
    assert np.array_equal(model.predict(others), before)


def test_features_in_counts_all_numbers_of_a_row():
    images, labels = random_images(6, (4, 6, 2)), random_labels(6)
    assert KernelRidgeClassifier(TINY, backend="reference").fit(images, labels).n_features_in_ == 48
    assert KernelRidgeClassifier("relu").fit(images.reshape(6, -1), labels).n_features_in_ == 48


def test_a_support_vector_machine_reads_digits_with_default_parameters():
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))  # the digits are sorted by writer
    train, test = order[:500], order[500:800]
    model = KernelSVC().fit(images[train], labels[train])
    assert model.score(images[test], labels[test]) >= 0.97
    assert model.C_ > 500  # large, because the entries of K are close to 1


def test_the_default_price_does_not_depend_on_the_scale_of_the_kernel():
    images, labels = digits(150)
    K, L = tl.kernel(SMALL)(images[:100]), tl.kernel(SMALL)(images[100:], images[:100])
    plain, scaled = KernelSVC("precomputed"), KernelSVC("precomputed")
    plain.fit(K, labels[:100])
    scaled.fit(1000 * K + 7, labels[:100])
    decisions = [  # of pairs of classes; votes would jump if a decision is near 0
        plain.separators_.pairs(L[:, plain.support_]),
        scaled.separators_.pairs(1000 * L[:, scaled.support_] + 7),
    ]
    np.testing.assert_allclose(*decisions, atol=1e-2)  # libsvm stops at 1e-3, and rounds entries to float32


@pytest.mark.parametrize("ridge", [1e-3, "loo"])
def test_a_tilted_classifier_is_the_solver_on_one_hot_targets(ridge):
    images, labels = digits(60)
    model = KernelRidgeClassifier(SMALL, ridge, tilt="loo").fit(images, labels)
    solution = solve_ridge(tl.kernel(SMALL)(images), np.eye(10)[labels], ridge, tilt="loo", criterion="accuracy")
    np.testing.assert_array_equal(model.dual_coef_, solution.coefficients)
    assert (model.ridge_, model.tilt_) == (solution.ridge, solution.tilt)
    assert model.loo_score_ == np.mean(solution.leave_one_out.argmax(axis=1) == labels)


def test_tilt_and_ridge_picked_by_leave_one_out_do_not_lose_to_the_defaults():
    images, labels = digits(300)
    plain = KernelRidgeClassifier(SMALL, 1.0).fit(images, labels)
    chosen = KernelRidgeClassifier(SMALL, "loo", tilt="loo").fit(images, labels)
    assert chosen.loo_score_ >= plain.loo_score_


def test_tilting_by_leave_one_out_equals_refitting_the_estimator():
    images, targets = random_images(9, (4, 4, 1)), random_images(9, (2,), seed=3)
    model = KernelRidgeRegressor(TINY, 1e-2, backend="reference", tilt=0.3).fit(images, targets)
    for i in range(9):
        others = clone(model).fit(np.delete(images, i, axis=0), np.delete(targets, i, axis=0))
        np.testing.assert_allclose(model.loo_predictions_[i], others.predict(images[i : i + 1])[0], atol=1e-9)


@pytest.mark.parametrize("classes", [2, 5])
def test_probabilities_are_calibrated_and_agree_with_predictions(classes):
    images, labels = digits(1000)
    labels = labels % classes
    model = KernelRidgeClassifier(SMALL, 1e-2).fit(images[:500], labels[:500])
    shares = model.predict_proba(images[500:])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_array_equal(shares.argmax(axis=1), model.predict(images[500:]))
    right = shares.argmax(axis=1) == labels[500:]
    assert abs(shares.max(axis=1).mean() - right.mean()) < 0.05  # 500 images: a standard error of 0.02
    assert -np.log(shares[np.arange(500), labels[500:]]).mean() < 0.5 * np.log(classes)


def test_a_weight_of_zero_removes_a_row_and_of_two_repeats_it():
    images, labels = random_images(12), random_labels(12)
    weights = np.array([0.0, 2.0] + [1.0] * 10)
    weighted = KernelRidgeClassifier(SMALL, 0.1).fit(images, labels, sample_weight=weights)
    rows = [1, *range(1, 12)]
    repeated = KernelRidgeClassifier(SMALL, 0.1).fit(images[rows], labels[rows])
    new = random_images(5, seed=9)
    np.testing.assert_allclose(weighted.decision_function(new), repeated.decision_function(new), atol=1e-9)
    assert not weighted.dual_coef_[0].any()
    np.testing.assert_allclose(weighted.loo_decision_[0], weighted.decision_function(images[:1])[0], atol=1e-6)


def test_balanced_class_weights_are_sample_weights():
    images, labels = random_images(12), np.array([0] * 8 + [1] * 4)
    balanced = KernelRidgeClassifier(SMALL, 0.1, class_weight="balanced").fit(images, labels)
    by_hand = KernelRidgeClassifier(SMALL, 0.1).fit(images, labels, sample_weight=np.where(labels, 1.5, 0.75))
    np.testing.assert_allclose(balanced.dual_coef_, by_hand.dual_coef_, rtol=1e-12)


@pytest.mark.parametrize("estimator", [KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC])
def test_a_store_keeps_the_matrix_and_the_next_fit_reads_it(tmp_path, estimator):
    images, labels = random_images(20), random_labels(20)
    direct = estimator(SMALL, 0.1).fit(images, labels)
    kept = estimator(SMALL, 0.1, store=tmp_path / "k.zarr").fit(images, labels)
    np.testing.assert_array_equal(kept.predict(images), direct.predict(images))
    np.testing.assert_array_equal(np.asarray(open_gram(tmp_path / "k.zarr")), tl.kernel(SMALL)(images))
    again = estimator(SMALL, 0.5, store=tmp_path / "k.zarr").fit(images, labels)
    np.testing.assert_array_equal(again.predict(images), estimator(SMALL, 0.5).fit(images, labels).predict(images))
    with pytest.raises(ParameterError, match="store keeps a matrix that is computed here"):
        estimator("precomputed", 0.1, store=tmp_path / "k.zarr").fit(np.eye(4), random_labels(4, 2))


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("kernel", [SMALL, "precomputed"])
def test_a_support_vector_machine_decides_as_scikit_learn_does(classes, kernel):
    images, labels = digits(200)
    labels = np.array(list("abcdefghij"))[labels % classes]
    K, L = tl.kernel(SMALL)(images[:100]), tl.kernel(SMALL)(images[100:], images[:100])
    theirs = SVC(C=30.0, kernel="precomputed", class_weight="balanced", break_ties=True).fit(K, labels[:100])
    ours = KernelSVC(kernel, C=30.0, class_weight="balanced")
    ours = ours.fit(K if kernel == "precomputed" else images[:100], labels[:100])
    new = L if kernel == "precomputed" else images[100:]
    # Entries between different sets of images agree to the precision of float32; a decision sums them over 100 rows.
    np.testing.assert_allclose(ours.decision_function(new), theirs.decision_function(L), atol=1e-3)
    np.testing.assert_array_equal(ours.predict(new), theirs.predict(L))
    assert ours.score(new, labels[100:]) > 0.6  # trained on 100 images of 10 digits


@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_with_all_rows_as_landmarks_training_is_exact(flips, weighted):
    images, labels = random_images(30), random_labels(30)
    weights = np.random.default_rng(3).uniform(0.5, 2.0, 30) if weighted else None
    exact = KernelRidgeClassifier(SMALL, 0.1, flips=flips).fit(images, labels, weights)
    close = KernelRidgeClassifier(SMALL, 0.1, flips=flips, landmarks=30).fit(images, labels, weights)
    new = random_images(5, seed=9)
    np.testing.assert_allclose(close.decision_function(new), exact.decision_function(new), rtol=0, atol=1e-4)
    np.testing.assert_allclose(close.loo_decision_, exact.loo_decision_, rtol=0, atol=1e-4)


@pytest.mark.parametrize("by", ["variance", "random"])
def test_leave_one_out_of_landmarks_equals_refitting_with_the_same_landmarks(by):
    images, targets = random_images(20, (4, 4, 1)), random_images(20, (2,), seed=3)
    options = {"backend": "reference", "landmarks": 5, "landmarks_by": by, "precision": "float64"}
    model = KernelRidgeRegressor(TINY, 0.1, **options).fit(images, targets)
    assert model.X_fit_.shape == (5, 4, 4, 1)
    k = tl.kernel(TINY)
    C, W = k(images, model.X_fit_, backend="reference"), k(model.X_fit_, backend="reference")
    for i in range(20):
        rest = np.delete(np.arange(20), i)
        beta = np.linalg.solve(C[rest].T @ C[rest] + 0.1 * W, C[rest].T @ targets[rest])
        np.testing.assert_allclose(model.loo_predictions_[i], C[i] @ beta, rtol=0, atol=1e-6)


def test_landmarks_of_a_precomputed_matrix_and_in_a_store_are_those_of_images(tmp_path):
    images, labels = digits(150)
    direct = KernelRidgeClassifier(SMALL, "loo", landmarks=30).fit(images[:100], labels[:100])
    stored = KernelRidgeClassifier(SMALL, "loo", landmarks=30, store=tmp_path / "c.zarr")
    stored.fit(images[:100], labels[:100])
    k = tl.kernel(SMALL)
    given = KernelRidgeClassifier("precomputed", "loo", landmarks=30).fit(k(images[:100]), labels[:100])
    new = images[100:]
    np.testing.assert_allclose(stored.decision_function(new), direct.decision_function(new), rtol=0, atol=1e-9)
    assert given.loo_score_ > 0.8
    assert direct.score(images[100:], labels[100:]) > 0.8
    assert given.score(k(images[100:], images[:100]), labels[100:]) > 0.8
    assert direct.ridge_ > 0
