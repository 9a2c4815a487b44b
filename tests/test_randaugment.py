"""RandAugment: every operation against Pillow, the frequencies of operations, and bad input."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from sklearn.base import clone

from tangentless.errors import InputError, ParameterError
from tangentless.preprocessing import OPERATIONS, RandAugment, rows


def some_images():
    """Noise, smooth colours, dark and flat images, and one of a single colour."""
    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    smooth = (generator.standard_normal((20, 32, 32, 3)).cumsum(axis=1).cumsum(axis=2) * 4 + 128).clip(0, 255)
    images = np.concatenate([noise, smooth.astype(np.uint8), noise // 9, noise // 100])
    images[5], images[6, ..., 0] = 77, 3
    return images


IMAGES = some_images()


def with_pillow(name, image, magnitude):
    factor = 0.1 + 1.8 * magnitude / 10
    match name:
        case "FlipLR":
            return ImageOps.mirror(image)
        case "Solarize":
            return ImageOps.solarize(image, 256 - int(magnitude * 256 / 10))
        case "Posterize":
            return ImageOps.posterize(image, 4 - int(magnitude * 4 / 10))
        case "Equalize":
            return ImageOps.equalize(image)
        case "Identity":
            return image
    return getattr(ImageEnhance, name)(image).enhance(factor)


@pytest.mark.parametrize("magnitude", [0, 4, 5.5, 9])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_is_that_of_pillow_to_the_last_bit(name, channels, magnitude):
    images = IMAGES[..., :channels]
    ours = RandAugment(1, magnitude, [name]).copy(images)
    theirs = [with_pillow(name, Image.fromarray(image.squeeze()), magnitude) for image in images]
    np.testing.assert_array_equal(ours, np.stack([np.asarray(image) for image in theirs]).reshape(images.shape))


def test_each_image_is_changed_by_two_different_operations_about_equally_often():
    images = np.zeros((9000, 1, 2, 1), np.uint8)
    images[:, :, 0] = 200  # shows mirroring and inverting apart, which commute
    copies = RandAugment(2, 5, ["FlipLR", "Solarize", "Identity"]).copy(images)
    kinds, counts = np.unique(copies.reshape(-1, 2), axis=0, return_counts=True)
    # Solarizing at 5 inverts from 128 up, so 200 becomes 55. These are the three pairs of different operations.
    assert kinds.tolist() == [[0, 55], [0, 200], [55, 0]]
    np.testing.assert_allclose(counts, 3000, atol=5 * np.sqrt(2000))


def test_copies_depend_on_seed_and_key_and_not_on_chunks(monkeypatch):
    first = RandAugment(seed=1).copy(IMAGES, 2)
    monkeypatch.setattr(rows, "ROWS_AT_ONCE", 7)
    np.testing.assert_array_equal(RandAugment(seed=1).copy(IMAGES, 2), first)
    np.testing.assert_array_equal(np.concatenate(list(clone(RandAugment(seed=1)).chunks(IMAGES, 2))), first)
    assert (RandAugment(seed=2).copy(IMAGES, 2) != first).any()
    assert (RandAugment(seed=1).copy(IMAGES, 3) != first).any()


def test_the_images_given_stay_as_they_are():
    images = IMAGES.copy()
    images.setflags(write=False)
    RandAugment(number=9).copy(images)
    np.testing.assert_array_equal(images, IMAGES)


def test_tiny_images_have_no_inside_to_smooth():
    images = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    np.testing.assert_array_equal(RandAugment(1, 4, ["Sharpness"]).copy(images), images)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"operations": ["Rotate"]}, "no operation 'Rotate'; there are FlipLR"),
        ({"magnitude": 11}, "magnitude must be from 0 to 10"),
        ({"magnitude": "much"}, "magnitude must be from 0 to 10"),
        ({"number": 0}, "number must be from 1 to 9"),
        ({"number": 2, "operations": ["Color"]}, "number must be from 1 to 1"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_parameters_are_refused(options, problem):
    with pytest.raises(ParameterError, match=problem):
        RandAugment(**options).copy(IMAGES)


@pytest.mark.parametrize("images", [IMAGES / 255, IMAGES[0], IMAGES[..., :2], IMAGES.tolist(), ["a"], 3])
def test_only_images_of_bytes_are_changed(images):
    with pytest.raises(InputError, match="needs uint8 images"):
        RandAugment().copy(images)


def test_a_list_of_images_is_as_good_as_an_array():
    np.testing.assert_array_equal(RandAugment().copy(list(IMAGES)), RandAugment().copy(IMAGES))
    with pytest.raises(InputError, match="images must all be of one size"):
        RandAugment().copy([IMAGES[0], IMAGES[0, 1:]])
