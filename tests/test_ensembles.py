"""Ensembles over random copies of training images, and predictions averaged over copies of new ones."""

import json

import numpy as np
import pytest
from sklearn.base import clone

import tangentless as tl
from tangentless.classical import Gaussian
from tangentless.errors import ArchitectureError, InputError, NotPositiveDefinite, ParameterError
from tangentless.models import load_model, save_model
from tangentless.preprocessing import Augmentation, RandAugment
from tangentless.solve import solve_ridge
from tangentless.symmetries import Symmetry

KERNEL = Gaussian(0.05)  # cheap; nothing here depends on the choice of kernel
AUGMENTATION = Augmentation(crop=1, flips=True, cutout=2, seed=3)
EXACT = {"backend": "reference", "precision": "float64"}


@pytest.fixture(scope="module")
def data():
    images = np.random.default_rng(0).standard_normal((16, 4, 4, 1))
    return images[:12], np.arange(12) % 3, images[12:]


def fitted(data, kind=tl.KernelRidgeClassifier, **options):
    X, y, _ = data
    given = {"ridge": 0.1, "augmentation": AUGMENTATION, "ensemble": 3, **EXACT, **options}
    return kind(KERNEL, **given).fit(X, y)


def test_an_ensemble_is_the_mean_of_fits_to_its_draws(data):
    X, y, Z = data
    members = [
        tl.KernelRidgeClassifier(KERNEL, ridge=0.1, **EXACT).fit(AUGMENTATION.copy(X, draw), y) for draw in range(3)
    ]
    expected = np.mean([member.decision_function(Z) for member in members], axis=0)
    np.testing.assert_allclose(fitted(data).decision_function(Z), expected, atol=1e-12)


@pytest.mark.parametrize("tilt", [0.0, 0.4])
def test_leave_one_out_of_an_ensemble_equals_brute_force(data, tilt):
    X, y, _ = data
    model, k, Y = fitted(data, tilt=tilt), KERNEL, np.eye(3)[y]
    for row in range(len(X)):
        others = np.delete(np.arange(len(X)), row)
        values = []
        for draw in range(3):  # every member leaves out its copy of the image
            copies = AUGMENTATION.copy(X, draw)
            alpha = solve_ridge(k(copies[others], **EXACT), Y[others], 0.1, tilt=tilt).coefficients
            values.append(k(copies[[row]], copies[others], **EXACT) @ alpha)
        np.testing.assert_allclose(model.loo_decision_[row], np.mean(values, axis=0)[0], atol=1e-9)


def test_only_one_matrix_is_held(data, monkeypatch):
    import weakref

    held, alive = [], []
    own = tl.KernelRidgeClassifier._matrix

    def watched(self, *arguments, **options):
        alive.append(sum(one() is not None for one in held))
        matrix = own(self, *arguments, **options)
        held.append(weakref.ref(matrix))
        return matrix

    monkeypatch.setattr(tl.KernelRidgeClassifier, "_matrix", watched)
    fitted(data)
    assert alive == [0, 0, 0]


def test_averaging_is_the_mean_over_copies_of_new_images(data):
    Z = data[2]
    plain, averaged = fitted(data), fitted(data, averaging="mirror shifts1")
    copies = [transform(Z) for transform in Symmetry.parse("mirror shifts1").transforms]
    expected = np.mean([plain.decision_function(copy) for copy in copies], axis=0)
    np.testing.assert_allclose(averaged.decision_function(Z), expected, atol=1e-12)
    np.testing.assert_array_equal(averaged.loo_decision_, plain.loo_decision_)


@pytest.mark.parametrize("landmarks", [None, 5])
@pytest.mark.parametrize(
    ("shape", "averaging", "message"),
    [
        ((6,), "mirror", "vectors have no mirror image"),
        ((6, 2), "shifts1", "sequences shift along one axis"),
        ((4, 6, 1), "rotations", "only square images"),
    ],
)
def test_rows_without_such_copies_are_not_averaged_over_other_rows(landmarks, shape, averaging, message):
    X = np.random.default_rng(0).standard_normal((12, *shape))
    options = {"ridge": 0.1, "landmarks": landmarks, **EXACT}
    with pytest.raises(InputError, match=message):
        tl.KernelRidgeRegressor(KERNEL, averaging=averaging, **options).fit(X, np.arange(12.0))
    model = tl.KernelRidgeRegressor(KERNEL, **options).fit(X, np.arange(12.0)).set_params(averaging=averaging)
    with pytest.raises(InputError, match=message):
        model.predict(X)


def test_the_gradient_goes_through_draws_and_copies(data):
    Z, step = data[2][:1], 1e-6
    model = fitted(data, averaging="shifts1(reflect, across)", ensemble=2)
    towards, weights = np.random.default_rng(1).standard_normal(Z.shape), np.ones((1, 3))
    ends = (model.decision_function(Z + sign * step * towards).sum() for sign in (1, -1))
    slope = (model.value_gradient(Z, weights) * towards).sum()
    assert np.subtract(*ends) / (2 * step) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("kind", [tl.KernelRidgeClassifier, tl.KernelRidgeRegressor])
def test_files_keep_ensembles(data, tmp_path, kind):
    model = fitted(data, kind, averaging="mirror", flips=True)
    save_model(tmp_path / "model.npz", model)
    again = load_model(tmp_path / "model.npz", backend="reference")
    np.testing.assert_array_equal(again.predict(data[2]), model.predict(data[2]))
    assert (again.augmentation, again.ensemble, again.averaging) == (AUGMENTATION, 3, "mirror")


def test_draws_have_stores_of_their_own(data, tmp_path):
    model = fitted(data, store=tmp_path / "matrices")
    assert sorted(place.name for place in (tmp_path / "matrices").iterdir()) == ["draw0", "draw1", "draw2"]
    np.testing.assert_allclose(model.loo_decision_, fitted(data).loo_decision_, atol=1e-12)


def test_ridge_and_tilt_are_picked_on_the_first_draw(data):
    model, first = (fitted(data, ridge="loo", tilt="loo", ensemble=count) for count in (3, 1))
    assert (model.ridge_, model.tilt_) == (first.ridge_, first.tilt_)


def test_clones_have_the_same_parameters(data):
    model = tl.KernelRidgeRegressor(KERNEL, augmentation=AUGMENTATION, ensemble=2, averaging="mirror")
    again = clone(model)
    assert again.get_params() == model.get_params()


def test_randaugment_changes_bytes_before_all_else():
    images = np.random.default_rng(0).integers(0, 256, (5, 6, 6, 3), dtype=np.uint8)
    both = Augmentation(flips=True, randaugment=RandAugment(number=1), seed=4)
    first = RandAugment(number=1, seed=4).copy(images, 7)
    np.testing.assert_array_equal(both.copy(images, 7), Augmentation(flips=True, seed=4).copy(first, 7))
    assert Augmentation.from_json(both.to_json()).to_json() == both.to_json()


def test_augmentations_that_leave_nothing_are_refused(data):
    with pytest.raises(InputError, match="a crop by 4 leaves nothing of images"):
        Augmentation(crop=4).copy(data[0], 0)
    with pytest.raises(ParameterError, match="randaugment is a RandAugment"):
        Augmentation(randaugment=3)


def test_parameters_that_are_numbers_of_numpy_are_json():
    found = Augmentation(crop=np.int64(1), flips=np.bool_(True), randaugment=RandAugment(number=np.int64(3)))
    assert Augmentation.from_json(json.loads(json.dumps(found.to_json()))).to_json() == found.to_json()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augmentation": None}, "members would be the same"),
        ({"augmentation": "flips"}, "augmentation must be an Augmentation"),
        ({"ensemble": 0}, "ensemble is the number of members"),
        ({"averaging": "upside"}, "symmetry"),
        ({"landmarks": 4}, "no landmarks"),
        ({"kernel": "precomputed"}, "precomputed matrix has none"),
    ],
)
def test_what_cannot_be_is_refused(data, options, message):
    X, y, _ = data
    given = {"kernel": KERNEL, "augmentation": AUGMENTATION, "ensemble": 3, **EXACT, **options}
    with pytest.raises(ParameterError, match=message):
        tl.KernelRidgeClassifier(**given).fit(X, y)


def test_vectors_have_no_copies():
    X, y = np.random.default_rng(0).standard_normal((6, 3)), np.arange(6) % 2
    with pytest.raises(InputError, match="augmentation needs images"):
        tl.KernelRidgeClassifier("relu", augmentation=AUGMENTATION, **EXACT).fit(X, y)
    with pytest.raises(InputError, match="vectors have no mirror image"):
        tl.KernelRidgeClassifier("relu", averaging="mirror", **EXACT).fit(X, y)


@pytest.mark.parametrize("text", ["", "crop", "crop=-1", "cut=3", "flips=yes", "edges,gray"])
def test_texts_that_are_no_augmentation_are_refused(text):
    with pytest.raises(ParameterError, match="augmentation"):
        Augmentation.parse(text)


@pytest.fixture(scope="module")
def colours():
    images = np.random.default_rng(2).standard_normal((14, 4, 4, 3))
    return images[:9], np.arange(9) % 3, images[9:]


EDGES = {"augmentation": Augmentation(view="edges"), "ensemble": 2}


@pytest.mark.parametrize(("view", "flips"), [("gray", False), ("edges", True)])
def test_every_second_member_sees_a_view(colours, view, flips):
    X, y, Z = colours
    options = {"averaging": "mirror", "flips": flips}
    model = fitted(colours, augmentation=Augmentation(view=view), ensemble=2, **options)
    alone = [tl.KernelRidgeClassifier(k, ridge=0.1, **EXACT, **options).fit(X, y) for k in (KERNEL, KERNEL.seen(view))]
    left_out, Y = [member.loo_decision_ for member in alone], np.eye(3)[y]
    errors = [np.square(Y - a * left_out[0] - (1 - a) * left_out[1]).sum() for a in np.linspace(0, 1, 2001)]
    share = np.argmin(errors) / 2000
    np.testing.assert_allclose(model.shares_, [share, 1 - share], atol=1e-3)  # the step of the grid is 5e-4
    share = model.shares_[0]
    expected = share * alone[0].decision_function(Z) + (1 - share) * alone[1].decision_function(Z)
    np.testing.assert_allclose(model.decision_function(Z), expected, atol=1e-12)
    np.testing.assert_allclose(model.loo_decision_, share * left_out[0] + (1 - share) * left_out[1], atol=1e-12)
    step, towards = 1e-6, np.random.default_rng(1).standard_normal(Z.shape)
    ends = (model.decision_function(Z + sign * step * towards).sum() for sign in (1, -1))
    slope = (model.value_gradient(Z, np.ones((5, 3))) * towards).sum()
    assert np.subtract(*ends) / (2 * step) == pytest.approx(slope, rel=1e-5)


def test_parameters_that_are_set_after_the_fit_change_no_prediction(colours):
    model = fitted(colours, flips=True, **EDGES)
    before = model.decision_function(colours[2])
    model.set_params(flips=False, kernel="relu", ensemble=1, augmentation=None)
    np.testing.assert_array_equal(model.decision_function(colours[2]), before)


def test_targets_of_a_regressor_have_shares_of_their_own(colours):
    X, _, Z = colours
    several = np.random.default_rng(3).standard_normal((9, 2)) * [1, 1000]
    one, both = (fitted((X, y, Z), tl.KernelRidgeRegressor, **EDGES) for y in (several[:, 0], several))
    np.testing.assert_allclose(one.predict(Z), both.predict(Z)[:, 0], atol=1e-12)
    assert (one.shares_.shape, both.shares_.shape) == ((2,), (2, 2))


@pytest.mark.parametrize("kind", [tl.KernelRidgeClassifier, tl.KernelRidgeRegressor])
def test_files_keep_views_and_shares(colours, tmp_path, kind):
    model = fitted(colours, kind, **EDGES)
    save_model(tmp_path / "model.npz", model)
    again = load_model(tmp_path / "model.npz", backend="reference")
    np.testing.assert_array_equal(again.predict(colours[2]), model.predict(colours[2]))
    np.testing.assert_array_equal(again.shares_, model.shares_)


def test_members_that_would_be_the_same_are_refused(data):
    with pytest.raises(ParameterError, match="would be the same"):
        fitted(data, augmentation=Augmentation(view="gray"), ensemble=3)
    with pytest.raises(ParameterError, match="set ensemble=2"):
        fitted(data, augmentation=Augmentation(view="gray"), ensemble=1)
    with pytest.raises(ParameterError, match="there is no view"):
        Augmentation(view="colours")


@pytest.mark.parametrize(
    ("kernel", "shape", "view", "message"),
    [
        (KERNEL, (4, 4, 1), "gray", "sees gray: .* one channel"),
        (KERNEL, (5, 4, 3), "edges", "sees edges: .* not even"),
        (KERNEL, (5, 3), "edges", "sees edges: .* leave it out"),
        ("conv3 relu pool2 pool2 pool2 globalpool", (8, 8, 3), "edges", "sees edges: .* does not divide"),
    ],
)
def test_images_that_a_member_cannot_see_are_refused_before_any_kernel_is_computed(kernel, shape, view, message):
    model, seen = tl.KernelRidgeClassifier(kernel, augmentation=Augmentation(view=view), ensemble=2, **EXACT), []
    X = np.random.default_rng(0).standard_normal((6, *shape))
    with (
        model.reporting(lambda *counts: seen.append(counts)),
        pytest.raises((ArchitectureError, InputError), match=message),
    ):
        model.fit(X, np.arange(6) % 2)
    assert not seen


def test_rows_that_are_equal_in_a_view_are_not_told_of_float64(colours):
    X = colours[0].copy()
    X[1] = X[0] + 1  # brighter, with the same edges
    model = tl.KernelRidgeClassifier("conv3 relu globalpool normalize gaussian", ridge=0, backend="cpu", **EDGES)
    with pytest.raises(NotPositiveDefinite, match="sees edges") as caught:
        model.fit(X, colours[1])
    assert "more digits" not in str(caught.value)
