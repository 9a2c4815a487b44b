"""Symmetrised kernels: copies of images, and equality of n rows with training on all copies."""

import numpy as np
import pytest

import tangentless as tl
from tangentless.classical import Gaussian
from tangentless.errors import InputError, ParameterError
from tangentless.expression import read_kernel
from tangentless.kernel import Crossed
from tangentless.solve import solve_ridge
from tangentless.symmetries import Symmetry

CHAIN = "conv3 relu pool2 conv3 relu globalpool normalize relu"
EXACT = {"backend": "reference", "precision": "float64"}
FAST = {"backend": "cpu", "precision": "float64"}
TEXTS = ["mirror", "rotations", "shifts1", "mirror shifts1(reflect)", "shifts1(wrap, across)", "mirror rotations"]


def images(count, side=4, channels=2, seed=0):
    return np.random.default_rng(seed).standard_normal((count, side, side, channels))


def copies_of(X, symmetry):
    """All copies of all images, (N copies, ...); the copies of an image follow each other."""
    return np.stack([transform(X) for transform in symmetry.transforms], axis=1).reshape(-1, *X.shape[1:])


@pytest.mark.parametrize("text", [*TEXTS, "shifts2(reflect)", "mirror rotations shifts1(wrap, corners)"])
def test_transforms_move_every_pixel_as_their_adjoint_moves_it_back(text):
    X, Y = images(3), images(3, seed=1)
    for transform in Symmetry.parse(text).transforms:
        np.testing.assert_allclose((transform(X) * Y).sum(), (X * transform.back(Y)).sum(), rtol=1e-12)


def test_shifts_fill_the_border_with_zeros_reflections_or_the_other_side():
    line = np.arange(1.0, 5.0).reshape(1, 1, 4, 1)
    shifted = {
        border: [t(line).ravel().tolist() for t in Symmetry.parse(f"shifts1({border}, across)").transforms]
        for border in ("zero", "reflect", "wrap")
    }
    assert shifted["zero"] == [[1, 2, 3, 4], [2, 3, 4, 0], [0, 1, 2, 3]]
    assert shifted["reflect"] == [[1, 2, 3, 4], [2, 3, 4, 3], [2, 1, 2, 3]]
    assert shifted["wrap"] == [[1, 2, 3, 4], [2, 3, 4, 1], [4, 1, 2, 3]]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        *((Gaussian(0.05), text) for text in TEXTS),
        *((tl.kernel("conv3 relu globalpool"), text) for text in ("mirror rotations", "mirror shifts1(across)")),
        (tl.kernel("conv3(stride=2) relu globalpool"), "mirror"),
        (tl.kernel("conv3 relu globalpool"), "rotations shifts1(across)"),  # turning makes other shifts of these
        (tl.kernel("conv3 relu globalpool").symmetrized("shifts1(across)"), "rotations"),
        (tl.kernel("conv3 relu globalpool").symmetrized("rotations shifts1(across)"), "mirror rotations"),
        (Crossed(tl.kernel("conv3 relu globalpool")) * tl.kernel("conv3 gaussian globalpool"), "rotations"),
        (tl.kernel("conv3 relu globalpool").mirrored() * Gaussian(0.05), "rotations"),  # a turn changes the first
    ],
)
def test_symmetrized_is_the_mean_over_all_pairs_of_copies(kernel, text):
    X, Z, symmetry = images(2), images(1, seed=1), Symmetry.parse(text)
    number = len(symmetry.transforms)
    k = kernel.symmetrized(text)
    for others in (X, Z):
        every = kernel(copies_of(X, symmetry), copies_of(others, symmetry), **EXACT)
        expected = every.reshape(2, number, len(others), number).mean(axis=(1, 3))
        np.testing.assert_allclose(k(X, others, **EXACT), expected, atol=1e-12)
    np.testing.assert_allclose(k(X, **EXACT), k(X, X, **EXACT), atol=1e-12)


@pytest.mark.parametrize(
    ("text", "invariant"),
    [
        (CHAIN, True),
        ("patch2 relu pool2(stride=1) globalpool", True),
        ("conv3 residual(relu conv3) pool2 globalpool", True),
        ("conv3(stride=2) relu globalpool", False),
        ("conv3 relu pool3(stride=2) globalpool", False),
        ("residual(conv3(stride=1)) sum(conv3(stride=2) | conv1(stride=2)) globalpool", False),
    ],
)
def test_kernels_that_say_so_do_not_change_when_both_images_are_mirrored_or_turned(text, invariant):
    k, X = tl.kernel(text), images(2)
    assert k.invariant == invariant
    changed = [np.abs(k(t(X), **EXACT) - k(X, **EXACT)).max() for t in Symmetry.parse("mirror rotations").transforms]
    assert (max(changed) < 1e-12) == invariant


def test_one_side_suffices_for_mirrors_and_turns_of_invariant_kernels_alone():
    k, strided = tl.kernel(CHAIN), tl.kernel("conv3(stride=2) relu globalpool")
    texts = ("mirror", "mirror rotations", "shifts1", "mirror shifts1")
    assert [len(k.symmetrized(text).pairs) for text in texts] == [2, 8, 25, 50]
    assert [len(strided.symmetrized(text).pairs) for text in texts] == [4, 64, 25, 100]


def predict(kernel, X, Y, tests, ridge, options):
    alpha = solve_ridge(kernel(X, **options), Y, ridge).coefficients
    return kernel(tests, X, **options) @ alpha


def plain(text, kernel, X, tests, ridge=1e-3, options=EXACT):
    """The largest difference of predictions from ridge regression on all copies."""
    symmetry, Y = Symmetry.parse(text), np.random.default_rng(5).standard_normal((len(X), 3))
    number = len(symmetry.transforms)
    ours = predict(float(number) * kernel.symmetrized(text), X, Y, tests, ridge, options)
    theirs = predict(kernel, copies_of(X, symmetry), np.repeat(Y, number, axis=0), tests, ridge, options)
    return np.abs(ours - theirs).max()


def test_a_group_equals_training_on_all_copies():
    assert plain("mirror rotations", tl.kernel("conv3 relu globalpool"), images(4), images(1, seed=1)) < 1e-9


@pytest.mark.parametrize(
    "kernel",
    [
        Gaussian(0.1),
        pytest.param(tl.kernel("conv1 relu conv1 gaussian globalpool normalize relu"), marks=pytest.mark.slow),
    ],
)
def test_5_shifts_and_mirrors_of_200_images_equal_training_on_all_copies(kernel):
    # Five columns: cyclic shifts by up to two pixels and mirrors are a group, which leaves these kernels invariant.
    X, tests = (np.random.default_rng(seed).standard_normal((count, 2, 5, 2)) for count, seed in ((200, 0), (20, 1)))
    assert plain("mirror shifts2(wrap, across)", kernel, X, tests, options=FAST) < 1e-9


def averaged(count, text=CHAIN, options=FAST):
    """The largest difference from regression that fits, and predicts, the mean prediction over the copies of an image.

    That is least squares on features of all copies, which come from a factor of the matrix of all copies.
    """
    symmetry, k, ridge = Symmetry.parse("mirror shifts1"), tl.kernel(text), 1e-3
    X, tests = images(count), images(3, seed=1)
    Y = np.random.default_rng(5).standard_normal((count, 3))
    whole = k(copies_of(np.concatenate([X, tests]), symmetry), **options)
    values, vectors = np.linalg.eigh(whole)
    features = (vectors * np.sqrt(np.maximum(values, 0.0))).reshape(count + 3, -1, len(whole)).mean(axis=1)
    stacked = np.concatenate([features[:count], np.sqrt(ridge) * np.eye(len(whole))])
    weights = np.linalg.lstsq(stacked, np.concatenate([Y, np.zeros((len(whole), 3))]), rcond=None)[0]
    ours = predict(k.symmetrized("mirror shifts1"), X, Y, tests, ridge, options)
    return np.abs(ours - features[count:] @ weights).max()


def test_shifts_that_are_no_group_equal_fitting_the_mean_over_all_copies():
    assert averaged(3, "conv3 relu globalpool", EXACT) < 1e-9


@pytest.mark.slow  # two million pairs, and least squares on 2,050 features
def test_shifts_that_are_no_group_equal_fitting_the_mean_over_all_copies_of_200_images():
    assert averaged(200) < 1e-9


def test_flips_are_the_symmetry_mirror():
    X, y = images(4), np.arange(4) % 2
    model = tl.KernelRidgeClassifier(CHAIN, flips=True, backend="reference").fit(X, y)
    assert model.kernel_ == 2.0 * tl.kernel(CHAIN).symmetrized("mirror")
    K, M = (k(X, backend="reference") for k in (tl.kernel(CHAIN), Crossed(tl.kernel(CHAIN))))
    np.testing.assert_allclose(model.kernel_(X, backend="reference"), K + M, atol=1e-14)


@pytest.mark.parametrize("text", ["mirror rotations", "shifts1(reflect, across)"])
def test_gradients_go_through_every_copy(text):
    k = 0.5 * tl.kernel("conv3 tanh globalpool").symmetrized(text)
    X, Z, G = images(3, side=3, channels=1), images(2, side=3, channels=1, seed=1), np.ones((3, 2))
    step, towards = 1e-6, images(3, side=3, channels=1, seed=2)
    ends = (k(X + sign * step * towards, Z, **EXACT).sum() for sign in (1, -1))
    slope = (k.vjp(X, Z, G, **EXACT)[0] * towards).sum()
    assert np.subtract(*ends) / (2 * step) == pytest.approx(slope, rel=1e-6)
    ends = (k(X + sign * step * towards, **EXACT).sum() for sign in (1, -1))
    slope = (k.vjp(X, None, np.ones((3, 3)), **EXACT) * towards).sum()
    assert np.subtract(*ends) / (2 * step) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("text", [*TEXTS, "mirror rotations shifts2(reflect, corners)"])
def test_the_text_says_all(text):
    k = tl.kernel(CHAIN).symmetrized(text)
    assert read_kernel(repr(k)) == k
    assert str(Symmetry.parse(text)) == text


@pytest.mark.parametrize("text", ["", "mirrors", "shifts0", "mirror mirror", "shifts1 shifts2", "shifts1(round)", 3])
def test_what_is_no_symmetry_is_refused(text):
    with pytest.raises(ParameterError, match=r"symmetry"):
        tl.kernel(CHAIN).symmetrized(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a symmetry is made of mirror"),
        ({"shifts": -1}, "shifts is a whole number"),
        ({"shifts": 1.5}, "shifts is a whole number"),
        ({"shifts": 100}, "shifts is a whole number"),
        ({"shifts": 1, "border": "mirror"}, "border of shifts is zero, reflect, wrap, not 'mirror'"),
    ],
)
def test_fields_that_no_text_has_are_refused(options, message):
    with pytest.raises(ParameterError, match=message):
        Symmetry(**options)


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("mirror", (2, 3), "vectors have no mirror image"),
        ("rotations", (2, 4, 6, 1), "only square images"),
        ("rotations", (2, 6, 1), "only square images"),
        ("shifts4", (2, 8, 4, 1), "leaves nothing"),
        ("shifts1", (2, 8, 1), r"write shifts1\(across\)"),
    ],
)
def test_images_without_such_copies_are_refused(text, shape, message):
    k = tl.kernel("relu globalpool" if len(shape) > 2 else "relu")
    with pytest.raises(InputError, match=message):
        k.symmetrized(text)(np.ones(shape), backend="reference")
