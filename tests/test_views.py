"""Views of images, such as edges, and kernels of them."""

import numpy as np
import pytest

import tangentless as tl
from tangentless.classical import Gaussian
from tangentless.errors import InputError, ParameterError
from tangentless.expression import read_kernel
from tangentless.features import FeatureKernel, RandomPatchFeatures
from tangentless.features.saving import features_of
from tangentless.refining import with_parameters
from tangentless.views import VIEWS, Edges, View

KERNEL = "conv3 relu pool2 conv3 gaussian globalpool normalize gaussian"
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((4, 8, 12, 3))


@pytest.mark.parametrize("text", VIEWS)
def test_a_kernel_of_a_view_is_that_of_what_it_shows(text):
    k, view = tl.kernel(KERNEL), View.parse(text)
    shown = view(IMAGES)
    assert shown.shape[1:] == view.shape(IMAGES.shape[1:])
    np.testing.assert_array_equal(k.seen(text)(IMAGES), k(shown))
    np.testing.assert_array_equal(k.seen(text).diag(IMAGES), k.diag(shown))


@pytest.mark.parametrize("text", VIEWS)
def test_what_is_shown_has_a_derivative(text):
    view, step = View.parse(text), 1e-6
    towards, cotangents = RNG.standard_normal(IMAGES.shape), RNG.standard_normal(view(IMAGES).shape)
    slope = ((view(IMAGES + step * towards) - view(IMAGES - step * towards)) * cotangents).sum() / (2 * step)
    assert (view.back(IMAGES, cotangents) * towards).sum() == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("text", ["gray", "edges"])
def test_gradients_go_through_views(text, backend):
    k, G, step = (tl.kernel(KERNEL) + 0.5 * tl.kernel("relu globalpool")).seen(text), RNG.standard_normal((4, 4)), 1e-6
    towards, how = RNG.standard_normal(IMAGES.shape), {"backend": backend, "precision": "float64"}
    ends = ((k(IMAGES + sign * step * towards, **how) * G).sum() for sign in (1, -1))
    slope = np.subtract(*ends) / (2 * step)
    assert (k.vjp(IMAGES, None, G, **how) * towards).sum() == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("copy", [lambda x: x[:, :, ::-1], lambda x: np.rot90(x, 1, (1, 2))])
@pytest.mark.parametrize("text", VIEWS)
def test_mirrors_and_turns_leave_kernels_of_views_as_they_are(text, copy):
    k = tl.kernel(KERNEL).seen(text)
    assert k.invariant
    how = {"backend": "reference"}
    np.testing.assert_allclose(k(copy(IMAGES), **how), k(IMAGES, **how), atol=1e-12)


def test_opposite_edges_give_the_same_view():
    np.testing.assert_allclose(Edges()(-IMAGES), Edges()(IMAGES), atol=1e-12)


def test_orientations_share_the_root_of_the_length():
    shown = Edges(full=True)(IMAGES[..., :1])
    framed = np.pad(IMAGES[..., 0], ((0, 0), (1, 1), (1, 1)), mode="edge")
    length = 2 * np.hypot(*np.gradient(framed, axis=(1, 2)))[:, 1:-1, 1:-1]
    np.testing.assert_allclose(shown.sum(axis=-1), np.sqrt(length), rtol=1e-12)
    assert ((shown > 0).sum(axis=-1) <= 2).all()


def test_flat_images_have_no_edges_and_no_slope():
    flat = np.ones((2, 4, 4, 3))
    assert not Edges()(flat).any()
    assert not Edges().back(flat, np.ones((2, 4, 4, 6))).any()
    k = tl.kernel("conv3 relu globalpool").seen("edges")
    assert not k(flat).any()
    assert not k.vjp(flat, None, np.ones((2, 2)), precision="float64").any()


def test_half_a_side_that_two_pools_do_not_divide_is_framed():
    shown = Edges()(RNG.standard_normal((1, 28, 32, 1)))
    assert shown.shape == (1, 16, 16, 6)
    assert not shown[:, [0, -1]].any()
    assert shown[:, :, [0, -1]].any()


def test_texts_of_views_are_read_back():
    k = (tl.kernel("myrtle5").seen("edges") + 2.0 * tl.kernel("relu").seen("gray")).mirrored()
    assert read_kernel(repr(k)) == k


def test_stores_keep_kernels_of_views(tmp_path):
    k = tl.kernel("conv3 relu globalpool").seen("edges")
    found = tl.gram(k, IMAGES, store=tmp_path / "k.zarr")
    np.testing.assert_array_equal(np.asarray(found), k(IMAGES))
    assert read_kernel(tl.open_gram(tmp_path / "k.zarr").manifest.kernel) == k


@pytest.mark.parametrize(
    ("view", "shape", "message"),
    [
        ("gray", (8, 8, 1), "one channel"),
        ("gray", (5,), "no colours"),
        ("edges", (9, 8, 3), "not even"),
        ("edges", (9, 3), r"needs images \(N, H, W, C\), not \(N, 9, 3\)"),
    ],
)
def test_images_that_have_no_such_view_are_refused(view, shape, message):
    with pytest.raises(InputError, match=message):
        tl.kernel("relu").seen(view)(np.ones((2, *shape)))


def test_what_is_known_of_a_kernel_is_known_of_its_view():
    k, rows = tl.kernel("conv3 gaussian globalpool").seen("edges"), RandomPatchFeatures(filters=2, patch=2).fit(IMAGES)
    assert with_parameters(k, {"base.1.gaussian.gamma": 2.0}) == tl.kernel("conv3 gaussian(2) globalpool").seen("edges")
    assert features_of(FeatureKernel(rows).seen("gray") + k) == [rows]
    assert [type(leaf.core) for leaf in (Gaussian(0.1).seen("edges") + k).leaves()] == [Gaussian, type(k.base)]


def test_views_come_after_copies_and_once():
    for k in (tl.kernel("myrtle5").mirrored(), tl.kernel("myrtle5").seen("gray")):
        with pytest.raises(ParameterError, match="one view"):
            k.seen("edges")
    for unknown in ("edge", Edges(full="yes"), None):
        with pytest.raises(ParameterError, match="there is no view"):
            tl.kernel("myrtle5").seen(unknown)
