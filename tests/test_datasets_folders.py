"""Folders of images: sizes, crops, colours, formats, and files that are no images."""

import numpy as np
import pytest
from PIL import Image

from tangentless.datasets import find_photographs, folders, from_folder, read_photographs
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
    assert not cut.any()  # only the black middle is left
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
    exif[0x0112] = 8  # the camera was turned: the picture must be turned 90 degrees counterclockwise
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
    with pytest.raises(DatasetDamagedError, match=r"bad\.png cannot be read as an image.*remove it"):
        from_folder(folder)


def test_folders_that_are_missing_or_empty_are_named(tmp_path):
    with pytest.raises(DatasetMissingError, match=r"there is no folder .*nowhere"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(DatasetMissingError, match="there is no folder ~nobody"):
        from_folder("~nobody-of-this-name/photographs")
    with pytest.raises(DatasetMissingError, match="has no folders"):
        from_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetMissingError, match="empty has no"):
        from_folder(tmp_path)


def test_images_in_a_folder_within_a_class_are_not_left_out_in_silence(folder):
    (folder / "cat" / "more").mkdir()
    with pytest.raises(DatasetError, match="more is a folder within a class"):
        from_folder(folder)


def test_images_beside_the_classes_are_left_out_with_a_warning(folder):
    for name in ("1.PNG", "2.jpg"):
        Image.new("RGB", (8, 8)).save(folder / name)
    with pytest.warns(UserWarning, match=r"in no class are left out: 2, such as 1\.PNG") as told:
        images, *_ = from_folder(folder)
    assert (len(images), len(told)) == (3, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": True},
        {"size": (0, 3)},
        {"size": (32,)},
        {"size": (2.5, 3)},
        {"crop": "left"},
        {"colour": "cmyk"},
        {"on_error": "ignore"},
    ],
)
def test_parameters_out_of_range_are_refused(folder, options):
    with pytest.raises(ParameterError, match=f"{next(iter(options))} must be"):
        from_folder(folder, **options)


@pytest.mark.parametrize("files", [[], "photographs"])
def test_a_folder_or_an_empty_list_is_no_list_of_photographs(files):
    with pytest.raises(ParameterError, match="files must be a list of one or more; find_photographs"):
        read_photographs(files)


def test_one_number_is_both_sides_gray_is_grey_and_center_is_centre(folder):
    np.testing.assert_array_equal(from_folder(folder, 20)[0], from_folder(folder, (20, 20))[0])
    np.testing.assert_array_equal(from_folder(folder, colour="gray")[0], from_folder(folder, colour="grey")[0])
    np.testing.assert_array_equal(from_folder(folder, crop="center")[0], from_folder(folder, crop="centre")[0])


def test_what_file_managers_leave_behind_is_left_out(folder):
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", "ehthumbs.db"):
        (folder / "cat" / name).write_text("not an image")
    (folder / "__MACOSX").mkdir()
    (folder / "cat" / "@eaDir").mkdir()
    images, labels, classes = from_folder(folder)
    assert (len(images), labels.tolist(), classes) == (3, [0, 0, 1], ("cat", "dog"))


def test_unreadable_files_are_skipped_and_listed(folder):
    (folder / "cat" / "bad.png").write_text("not an image")
    with pytest.warns(UserWarning, match=r"skipped 1 of 4 files: .*bad\.png: cannot identify"):
        images, labels, _ = from_folder(folder, on_error="skip")
    assert (len(images), labels.tolist()) == (3, [0, 0, 1])
    found = read_photographs(find_photographs(folder / "cat"), on_error="skip")
    assert [file.name for file in found.files] == ["a.bmp", "b.png"]
    assert [file.name for file, _ in found.skipped] == ["bad.png"]
    np.testing.assert_array_equal(found.images, images[:2])
    with pytest.raises(DatasetDamagedError, match="none of 1 files can be read"):
        read_photographs([folder / "cat" / "bad.png"], on_error="skip")


def test_unlabelled_photographs_are_found_at_any_depth(folder):
    found = find_photographs(folder)
    assert [str(file.relative_to(folder)) for file in found] == ["cat/a.bmp", "cat/b.png", "dog/c.jpg", "notes.txt"]
    (folder / "empty").mkdir()
    with pytest.raises(DatasetMissingError, match="empty has no"):
        find_photographs(folder / "empty")


def test_a_photograph_of_108_megapixels_is_reduced_while_it_is_decoded(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    pixels = np.zeros((9_000, 12_000, 3), np.uint8)  # the size of pictures of phones
    pixels[:, 6_000:] = (255, 0, 0)
    Image.fromarray(pixels).save(tmp_path / "x" / "1.jpg", quality=50)
    decoded, flatten = [], folders._flatten
    monkeypatch.setattr(folders, "_flatten", lambda image: decoded.append(image.size) or flatten(image))
    images, *_ = from_folder(tmp_path, 32)
    assert decoded == [(1500, 1125)]  # an eighth of each side
    assert images[0, :, :15].max() < 10
    assert images[0, :, 17:, 0].min() > 240
