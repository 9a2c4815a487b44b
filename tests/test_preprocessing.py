"""Whitening and standardisation: their definitions, mirror images, batches, copies, and bad input."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from tangentless.algebra import CpuAlgebra
from tangentless.errors import DoesNotFit, InputError, ParameterError
from tangentless.estimators import KernelRidgeClassifier
from tangentless.preprocessing import CIFAR10, ZCA, RandAugment, Standardize, add_mirrors, mirror, rows, zca
from tangentless.preprocessing.saving import describe_step, restore_step
from tangentless.preprocessing.whitening import Dense, LowRank, Patches, to_unit

SMALL = "conv3 relu pool2 conv3 relu globalpool normalize relu"


def random_images(rows, shape=(4, 6, 2), seed=0):
    return np.random.default_rng(seed).standard_normal((rows, *shape)).cumsum(axis=1)


@parametrize_with_checks([ZCA(), Standardize()])
def test_scikit_learn_accepts_the_transformer(estimator, check):
    check(estimator)


def test_whitening_is_the_inverse_root_of_the_second_moments():
    images = random_images(200)
    flat = images.reshape(200, -1)
    unit = flat - flat.mean(axis=1, keepdims=True)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    zca = ZCA(epsilon=1e-3).fit(images)
    root = zca.whitening_
    product = root @ (unit.T @ unit / 200 + 1e-3 * np.eye(48)) @ root
    np.testing.assert_allclose(product, np.eye(48), atol=1e-9)
    np.testing.assert_allclose(zca.transform(images), (unit @ root).reshape(images.shape), atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 6, 2), (5, 3)])
def test_with_mirrors_whitening_commutes_with_mirroring(shape):
    images = random_images(50, shape)
    zca = ZCA(mirrors=True).fit(images)
    mirrored = zca.transform(np.flip(images, axis=-2))
    np.testing.assert_allclose(mirrored, np.flip(zca.transform(images), axis=-2), atol=1e-9)
    plain = ZCA().fit(images)
    assert np.abs(plain.transform(np.flip(images, axis=-2)) - np.flip(plain.transform(images), axis=-2)).max() > 0.1


def test_scale_and_brightness_of_an_image_do_not_matter_and_one_colour_is_zero():
    images = random_images(30)
    zca = ZCA(epsilon=1e-3).fit(images)
    np.testing.assert_allclose(zca.transform(3 * images + 7), zca.transform(images), atol=1e-9)
    assert not zca.transform(np.full((1, 4, 6, 2), 5)).any()


def test_an_image_of_one_colour_is_zero_where_its_mean_is_rounded():
    images = np.full((1, 32, 32, 3), 77 / 255)
    assert images.reshape(1, -1).mean() != images[0, 0, 0, 0]  # the rounding error, which must not be scaled up
    assert not to_unit(CpuAlgebra(), images).any()


def test_integers_and_any_number_at_once_give_the_same(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 1), dtype=np.uint8)
    white = ZCA(1e-3).fit_transform(images)
    monkeypatch.setattr(rows, "ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(ZCA(1e-3).fit_transform(images.astype(float)), white, atol=1e-10)


def test_it_begins_a_pipeline_of_images():
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1)
    pipeline = make_pipeline(ZCA(1e-2, mirrors=True), KernelRidgeClassifier(SMALL)).fit(images[:400], labels[:400])
    assert pipeline.score(images[400:800], labels[400:800]) > 0.8


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), "small", None, True])
def test_a_bad_epsilon_is_refused(epsilon):
    with pytest.raises(ParameterError, match="epsilon must be a finite number above 0"):
        ZCA(epsilon).fit(random_images(4))


def test_bad_images_are_refused():
    with pytest.raises(InputError, match="no mirror image"):
        ZCA(mirrors=True).fit(np.eye(4))
    with pytest.raises(InputError, match="NaN"):
        ZCA().fit(np.full((3, 2, 2, 1), np.nan))
    with pytest.raises(InputError, match=r"its shape is \(2, 2, 2, 2, 2\)"):
        ZCA().fit(np.ones((2, 2, 2, 2, 2)))
    with pytest.raises(InputError, match=r"rows of shape \(6, 4, 2\), but ZCA was fitted to rows of shape \(4, 6, 2\)"):
        ZCA().fit(random_images(9)).transform(random_images(9, (6, 4, 2)))


def test_batches_give_the_matrix_of_all_images():
    images = random_images(60)
    whole = ZCA(1e-3, mirrors=True).fit(images)
    batches = ZCA(1e-3, mirrors=True).fit_batches(images[start : start + 25] for start in range(0, 60, 25))
    np.testing.assert_allclose(batches.whitening_, whole.whitening_, atol=1e-10)
    assert (batches.shape_, batches.n_features_in_) == ((4, 6, 2), 48)
    with pytest.raises(InputError, match=r"rows of shape \(6, 4, 2\)"):
        ZCA().fit_batches([images, images.reshape(60, 6, 4, 2)])
    with pytest.raises(InputError, match="no batches"):
        ZCA().fit_batches([])


def test_mirrors_count_like_the_images_themselves():
    images = random_images(40)
    doubled, _ = add_mirrors(images, np.zeros(40))
    np.testing.assert_allclose(
        ZCA(1e-3, mirrors=True).fit(images).whitening_, ZCA(1e-3).fit(doubled).whitening_, atol=1e-10
    )


def test_copies_are_counted_and_made_a_chunk_at_a_time(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 6, 3), dtype=np.uint8)
    augmentation = RandAugment(seed=3)
    everything = np.concatenate([images, *(augmentation.copy(images, copy, 0) for copy in range(4))])
    expected = ZCA(1e-3).fit(everything).whitening_
    monkeypatch.setattr(rows, "ROWS_AT_ONCE", 7)
    found = ZCA(1e-3, copies=4, augmentation=augmentation).fit(images)
    np.testing.assert_allclose(found.whitening_, expected, atol=1e-10)
    assert np.abs(found.whitening_ - ZCA(1e-3, copies=4).fit(images).whitening_).max() > 1e-3  # another seed
    with pytest.raises(InputError, match=r"RandAugment needs uint8 images .* not float64"):
        ZCA(copies=1).fit(images / 255)


def test_the_arithmetic_of_the_gpu_is_that_of_the_cpu(fake_cupy):
    images = random_images(60)
    expected = ZCA(1e-3, mirrors=True).fit(images)
    found = ZCA(1e-3, mirrors=True, backend="cuda").fit(images)
    np.testing.assert_allclose(found.whitening_, expected.whitening_, atol=1e-10)
    np.testing.assert_allclose(found.transform(images), expected.transform(images), atol=1e-10)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("mirrors", [False, True])
def test_few_images_are_whitened_as_by_the_matrix_and_no_matrix_is_kept(mirrors, backend, fake_cupy):
    few, new = random_images(20), random_images(7, seed=1)
    unit = to_unit(CpuAlgebra(), add_mirrors(few, np.zeros(20))[0] if mirrors else few)
    values, vectors = np.linalg.eigh(unit.T @ unit / len(unit))
    expected = vectors * (values.clip(0) + 1e-3) ** -0.5 @ vectors.T
    zca = ZCA(1e-3, mirrors=mirrors, backend=backend).fit(few)
    assert isinstance(zca.form_, LowRank)
    np.testing.assert_allclose(zca.whitening_, expected, atol=1e-10)
    np.testing.assert_allclose(zca.transform(new).reshape(7, -1), to_unit(CpuAlgebra(), new) @ expected, atol=1e-10)
    assert zca.form_.images.shape == few.shape
    assert not np.shares_memory(zca.form_.images, few)


@pytest.mark.parametrize(("mirrors", "count"), [(False, 48), (True, 24)])
def test_as_many_images_as_numbers_in_one_are_summed_up_in_a_matrix(mirrors, count):
    assert isinstance(ZCA(1e-3, mirrors=mirrors).fit(random_images(count)).form_, Dense)
    assert isinstance(ZCA(1e-3, mirrors=mirrors).fit(random_images(count - 1)).form_, LowRank)


def test_large_photographs_are_whitened_without_a_matrix():
    photographs = np.random.default_rng(0).integers(0, 256, (6, 200, 200, 3), dtype=np.uint8)
    assert np.isfinite(ZCA().fit_transform(photographs)).all()  # the whitening matrix would take 115 GB


@pytest.mark.parametrize("count", [20, 60])
def test_whitening_that_does_not_fit_names_patches(monkeypatch, count):
    monkeypatch.setattr(CpuAlgebra, "free_bytes", lambda self: 1000)
    with pytest.raises(DoesNotFit, match=r"shape \(4, 6, 2\).*ZCA\(patch=8\).*smaller"):
        ZCA().fit(random_images(count))


def test_patches_are_whitened_alike_everywhere():
    noise = np.random.default_rng(0).standard_normal((40, 31, 31, 3))
    images = noise[:, :-1, :-1] + 0.5 * (noise[:, 1:, :-1] + noise[:, :-1, 1:] + noise[:, :-1, :-1, [1, 2, 0]])
    zca = ZCA(1e-5, patch=6)
    white = zca.fit_transform(images)
    assert isinstance(zca.form_, Patches)
    assert white.shape == images.shape

    def correlations(fields):
        shifts = [fields[:, 8:-8, 8 + shift : 22 + shift] for shift in (0, 1, 2)] + [fields[:, 9:-7, 8:22]]
        return np.corrcoef([channel.ravel() for field in shifts for channel in np.moveaxis(field, -1, 0)])

    for fields, least, most in ((images, 0.25, 1.0), (white, 0.0, 0.1)):
        found = np.abs(correlations(fields) - np.eye(12)).max()
        assert least < found < most
    moved = zca.transform(np.roll(images, (3, 4), axis=(1, 2)))
    np.testing.assert_allclose(moved[:, 12:22, 12:22], white[:, 9:19, 8:18], atol=1e-10)


def test_a_filter_is_the_mean_over_patches_that_cover_a_pixel():
    images = random_images(9, (7, 8, 2))
    zca = ZCA(1e-2, patch=3).fit(images)
    unit = to_unit(CpuAlgebra(), images).reshape(images.shape) * (images[0].size / 18) ** 0.5
    windows = np.lib.stride_tricks.sliding_window_view(unit, (3, 3), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
    patches = windows.reshape(9, 5, 6, 18)
    rows = patches.reshape(-1, 18)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    each = (patches @ (vectors * (values + 1e-2) ** -0.5 @ vectors.T)).reshape(9, 5, 6, 3, 3, 2)
    expected = np.mean([each[:, 2 - a, 3 - b, a, b] for a in range(3) for b in range(3)], axis=0)
    np.testing.assert_allclose(zca.transform(images)[:, 2, 3], expected, atol=1e-10)


def test_patches_with_mirrors_commute_with_mirroring_in_memory_that_images_do_not_set(fake_cupy):
    images = random_images(12, (20, 24, 3))
    zca = ZCA(mirrors=True, patch=4).fit(images)
    white = zca.transform(images)
    np.testing.assert_allclose(zca.transform(np.flip(images, axis=-2)), np.flip(white, axis=-2), atol=1e-9)
    assert zca.form_.filters.shape == (7, 7, 3, 3)
    np.testing.assert_allclose(ZCA(mirrors=True, patch=4, backend="cuda").fit_transform(images), white, atol=1e-10)
    whole = to_unit(CpuAlgebra(), images[:2]) @ zca.whitening_
    np.testing.assert_allclose(whole, white[:2].reshape(2, -1), atol=1e-9)


@pytest.mark.parametrize("shape", [(4, 6, 2), (9, 3), (9,)])
def test_patches_of_what_has_none_are_refused(shape):
    with pytest.raises(InputError, match="at least 5×5, not rows of shape"):
        ZCA(patch=5).fit(random_images(5, shape))


@pytest.mark.gpu
def test_the_gpu_gives_the_matrix_of_the_cpu():
    images = np.random.default_rng(0).integers(0, 256, (500, 16, 16, 3), dtype=np.uint8)
    cpu, gpu = (ZCA(mirrors=True, copies=2, backend=backend).fit(images) for backend in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.whitening_, cpu.whitening_, atol=1e-7)
    np.testing.assert_allclose(gpu.transform(images), cpu.transform(images), atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [
        {"copies": -1},
        {"copies": 1.5},
        {"augmentation": "random"},
        {"backend": "tpu"},
        {"backend": "auto"},
        {"patch": 0},
        {"patch": 2.5},
        {"patch": True},
        {"mirrors": "no"},
    ],
)
def test_other_bad_parameters_are_refused(options):
    with pytest.raises(ParameterError, match=next(iter(options))):
        ZCA(**options).fit(random_images(4))


def test_standardised_channels_have_mean_0_and_deviation_1():
    images = np.random.default_rng(0).integers(0, 256, (30, 5, 4, 3), dtype=np.uint8)
    standard = Standardize(scale=255).fit_transform(images)
    np.testing.assert_allclose(standard.mean(axis=(0, 1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(standard.std(axis=(0, 1, 2)), 1, atol=1e-12)


def test_given_means_are_the_formula_of_the_paper():
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    expected = (images / 255 - [0.4914, 0.4822, 0.4465]) / [0.2023, 0.1994, 0.2010]
    np.testing.assert_allclose(Standardize(**CIFAR10).fit(images[:1]).transform(images), expected, atol=1e-12)


def test_a_scale_that_is_set_after_the_fit_changes_nothing():
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)
    fitted = Standardize(**CIFAR10).fit(images)
    before = fitted.transform(images)
    assert np.array_equal(fitted.set_params(scale=1.0).transform(images), before)
    assert describe_step(fitted)[0]["scale"] == 255.0


@pytest.mark.parametrize("make", [lambda: ZCA(1e-2), lambda: ZCA(1e-2, patch=4), Standardize])
def test_a_fit_that_fails_leaves_the_transformer_as_it_was(make, monkeypatch):
    images = np.random.default_rng(0).standard_normal((8, 5, 4, 2))
    fitted = make().fit(images)
    before = fitted.transform(images)
    for name in ("fit_whole", "fit_patches"):
        monkeypatch.setattr(zca, name, lambda on, chunks, *options: list(chunks) and interrupted())
    monkeypatch.setattr(Standardize, "_means", lambda *arguments: interrupted())

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted.fit(images[:, :4, :4])
    assert np.array_equal(fitted.transform(images), before)


@pytest.mark.parametrize("options", [{}, {"patch": 2}, {"mirrors": True}])
@pytest.mark.parametrize("changes", [{"mirrors": True}, {"mirrors": False}, {"patch": None}, {"patch": 3}])
def test_files_hold_the_whitening_of_the_fit_whatever_its_parameters_are_now(options, changes):
    images = np.random.default_rng(0).standard_normal((8, 4, 4, 1))
    fitted = ZCA(1e-2, **options).fit(images).set_params(**changes)
    text, arrays = describe_step(fitted)
    again = restore_step(text, arrays.__getitem__, (4, 4, 1))
    assert np.array_equal(again.transform(images), fitted.transform(images))


def test_a_channel_of_one_value_is_not_divided_and_large_means_do_not_cancel():
    images = np.full((20, 2, 2, 2), 0.1)
    images[..., 1] = 1e8 + np.random.default_rng(0).standard_normal((20, 2, 2))
    standard = Standardize().fit_transform(images)
    np.testing.assert_allclose(standard[..., 0], 0, atol=1e-15)
    np.testing.assert_allclose(standard[..., 1].std(), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mean": (0.5,)}, "mean must be 3 numbers"),
        ({"mean": "middle"}, "mean must be one number for each channel"),
        ({"std": (1, 2, float("nan"))}, "std must be 3 numbers"),
        ({"std": (1, 0, 1)}, "every std must be above 0"),
        ({"scale": 0}, "scale must be a finite number above 0"),
    ],
)
def test_bad_statistics_are_refused(options, problem):
    with pytest.raises((ParameterError, InputError), match=problem):
        Standardize(**options).fit(np.ones((4, 2, 2, 3)))


def test_mirroring_swaps_left_and_right_and_keeps_labels():
    images = random_images(5)
    both, labels = add_mirrors(images, np.arange(5))
    np.testing.assert_array_equal(both[5:], images[:, :, ::-1])
    assert labels.tolist() == [*range(5), *range(5)]
    np.testing.assert_array_equal(mirror(mirror(images)), images)
    with pytest.raises(InputError, match=r"not arrays of shape \(4, 4\)"):
        mirror(np.eye(4))
