"""Folders of one's own images: sizes, crops, colours, formats, and files that are none."""

import numpy as np
import pytest
from PIL import Image

from tangentless.datasets import from_folder
from tangentless.errors import DatasetDamagedError, DatasetError, DatasetMissingError, ParameterError


@pytest.fixture
def folder(tmp_path):
    for name in ("dog", "cat"):
        (tmp_path / name).mkdir()
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :10], pixels[:, 30:] = (255, 0, 0), (0, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "cat" / "b.png")
    Image.fromarray(pixels.transpose(1, 0, 2)).save(tmp_path / "cat" / "a.bmp")
    Image.fromarray(pixels).save(tmp_path / "dog" / "c.jpg", quality=95)
    (tmp_path / "dog" / ".hidden").write_text("not an image")
    (tmp_path / "notes.txt").write_text("not a class")
    return tmp_path


def test_classes_and_images_come_in_the_order_of_their_names(folder):
    images, labels, classes = from_folder(folder)
    assert (images.shape, images.dtype, labels.tolist(), classes) == (
        (3, 32, 32, 3),
        np.uint8,
        [0, 0, 1],
        ("cat", "dog"),
    )
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(images[0], images[1].transpose(1, 0, 2))


def test_the_centre_is_cut_out_or_the_whole_is_stretched(folder):
    cut = from_folder(folder, (20, 20))[0][1]
    assert not cut.any()  # only the black middle
    whole = from_folder(folder, (20, 40), crop="none")[0][1]
    np.testing.assert_array_equal(whole, np.asarray(Image.open(folder / "cat" / "b.png")))
    narrow = from_folder(folder, (20, 4), crop="none")[0][1]
    assert narrow[:, 0, 0].min() > 200
    assert narrow[:, 3, 2].min() > 200


def test_grey_images_have_one_channel(folder):
    images = from_folder(folder, (20, 40), crop="none", colour="grey")[0]
    assert images.shape == (3, 20, 40, 1)
    assert set(np.unique(images[1])) == {0, 29, 76}  # the luma of blue and red


def test_photographs_are_upright_transparency_is_white_and_sixteen_bits_are_eight(tmp_path):
    (tmp_path / "x").mkdir()
    upright = np.zeros((8, 8), np.uint8)
    upright[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 8  # the camera was turned by 90 degrees: the picture is to be turned counterclockwise
    Image.fromarray(np.rot90(upright, -1)).save(tmp_path / "x" / "1.png", exif=exif)
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "x" / "2.png")
    Image.fromarray(np.full((8, 8), 0x8001, np.uint16)).save(tmp_path / "x" / "3.png")
    Image.new("P", (8, 8)).save(tmp_path / "x" / "4.gif", transparency=0)
    images, *_ = from_folder(tmp_path, (8, 8), colour="grey")
    np.testing.assert_array_equal(images[0, ..., 0], upright)
    assert (images[1] == 255).all()
    assert (images[2] == 0x80).all()
    assert (images[3] == 255).all()


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n", None])
def test_a_file_that_is_no_image_is_named(folder, content):
    whole = (folder / "cat" / "b.png").read_bytes()
    (folder / "dog" / "bad.png").write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(DatasetDamagedError, match=r"bad\.png cannot be read as an image.*take it out"):
        from_folder(folder)


def test_folders_that_are_missing_or_empty_are_named(tmp_path):
    with pytest.raises(DatasetMissingError, match=r"there is no folder .*nowhere"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(DatasetMissingError, match="has no folders"):
        from_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetMissingError, match="empty has no images"):
        from_folder(tmp_path)


def test_images_in_a_folder_within_a_class_are_not_left_out_in_silence(folder):
    (folder / "cat" / "more").mkdir()
    with pytest.raises(DatasetError, match="more is a folder within a class"):
        from_folder(folder)


@pytest.mark.parametrize(
    "options",
    [{"size": 32}, {"size": (0, 3)}, {"size": (32,)}, {"size": (2.5, 3)}, {"crop": "left"}, {"colour": "cmyk"}],
)
def test_parameters_out_of_range_are_refused(folder, options):
    with pytest.raises(ParameterError, match=f"{next(iter(options))} must be"):
        from_folder(folder, **options)
