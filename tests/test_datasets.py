"""Data sets: real files and small ones of the same format; missing, truncated, tampered and malicious files."""

import gzip
import hashlib
import os
import pickle
import pickletools

import numpy as np
import pytest

from published import (
    array_2,
    cifar10_binary,
    cifar10_pickled,
    cifar100_binary,
    cifar100_pickled,
    dictionary_2,
    idx,
    labels_below,
    npy,
    planes,
    random_images,
    tar_gz,
    text,
    write,
)
from tangentless.datasets import load
from tangentless.datasets.catalogue import CATALOGUE, PUBLISHED_ONLY
from tangentless.datasets.pickles import UnreadablePickle, read_pickle
from tangentless.datasets.tables import find_tables
from tangentless.errors import DatasetDamagedError, DatasetMissingError, ParameterError

IMAGES = random_images(12)
LABELS = labels_below(10, 12)
FINE = labels_below(100, 12)


def cifar10_files(folder, suffix, make):
    files = {
        f"{folder}/data_batch_{n}{suffix}": make(IMAGES[2 * n - 2 : 2 * n], LABELS[2 * n - 2 : 2 * n])
        for n in range(1, 6)
    }
    return files | {f"{folder}/test_batch{suffix}": make(IMAGES[10:], LABELS[10:])}


def cifar100_files(folder, suffix, make):
    return {
        f"{folder}/train{suffix}": make(IMAGES[:10], FINE[:10]),
        f"{folder}/test{suffix}": make(IMAGES[10:], FINE[10:]),
    }


CIFAR10_BINARY = cifar10_files("cifar-10-batches-bin", ".bin", cifar10_binary)
CIFAR10_PICKLED = cifar10_files("cifar-10-batches-py", "", cifar10_pickled)
CIFAR100_BINARY = cifar100_files("cifar-100-binary", ".bin", cifar100_binary)
CIFAR100_PICKLED = cifar100_files("cifar-100-python", "", cifar100_pickled)
LAYOUTS = {
    "CIFAR-10 binary": ("cifar10", CIFAR10_BINARY),
    "CIFAR-10 binary, packed": ("cifar10", {"cifar-10-binary.tar.gz": tar_gz(CIFAR10_BINARY)}),
    "CIFAR-10 pickled": ("cifar10", CIFAR10_PICKLED),
    "CIFAR-10 pickled, packed": ("cifar10", {"cifar-10-python.tar.gz": tar_gz(CIFAR10_PICKLED)}),
    "CIFAR-100 binary": ("cifar100", CIFAR100_BINARY),
    "CIFAR-100 binary, packed": ("cifar100", {"cifar-100-binary.tar.gz": tar_gz(CIFAR100_BINARY)}),
    "CIFAR-100 pickled": ("cifar100", CIFAR100_PICKLED),
    "CIFAR-100 pickled, packed": ("cifar100", {"cifar-100-python.tar.gz": tar_gz(CIFAR100_PICKLED)}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_cifar_gives_the_same_images(layout, tmp_path):
    name, files = LAYOUTS[layout]
    write(tmp_path, files)
    data = load(name, tmp_path, download=False, verify=False)
    labels = LABELS if name == "cifar10" else FINE
    assert data.train.images.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    np.testing.assert_array_equal(data.train.images, IMAGES[:10])
    np.testing.assert_array_equal(data.test.images, IMAGES[10:])
    np.testing.assert_array_equal(np.concatenate([data.train.labels, data.test.labels]), labels)
    assert len(data.classes) == (10 if name == "cifar10" else 100)
    assert all(len(value) == 64 for value in data.hashes.values())


@pytest.mark.parametrize("folder", ["mnist", ".", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read_zipped_or_not(folder, suffix, tmp_path):
    images, labels = random_images(5, (28, 28)), labels_below(10, 5)
    write(
        tmp_path,
        {
            f"{folder}/train-images-idx3-ubyte{suffix}": idx(images[:3]),
            f"{folder}/train-labels-idx1-ubyte{suffix}": idx(labels[:3]),
            f"{folder}/t10k-images-idx3-ubyte{suffix}": idx(images[3:]),
            f"{folder}/t10k-labels-idx1-ubyte": idx(labels[3:]),
        },
    )
    data = load("mnist", tmp_path, verify=False)
    np.testing.assert_array_equal(data.train.images[..., 0], images[:3])
    np.testing.assert_array_equal(data.test.labels, labels[3:])
    assert data.hashes["train-images-idx3-ubyte"] == hashlib.sha256(idx(images[:3])).hexdigest()


@pytest.mark.parametrize("folder", ["cifar-10.1", "CIFAR-10.1/datasets", "."])
def test_cifar10_1_has_test_images_only(folder, tmp_path):
    files = {"cifar10.1_v6_data.npy": npy(IMAGES), "cifar10.1_v6_labels.npy": npy(LABELS.astype(np.int32))}
    write(tmp_path, {f"{folder}/{name}": content for name, content in files.items()})
    data = load("cifar10.1", tmp_path, verify=False)
    assert data.train.images.shape == (0, 32, 32, 3)
    np.testing.assert_array_equal(data.test.images, IMAGES)
    np.testing.assert_array_equal(data.test.labels, LABELS)


def test_the_folder_of_the_files_itself_may_be_given(tmp_path):
    write(tmp_path, CIFAR10_BINARY)
    assert len(load("cifar10", tmp_path / "cifar-10-batches-bin", verify=False).train) == 10


def test_a_split_is_taken_from_by_slice_numbers_or_mask():
    test = load("digits").test
    for indices in (slice(3), [0, 1, 2], np.arange(len(test)) < 3):
        np.testing.assert_array_equal(test.take(indices).images, test.images[:3])
        np.testing.assert_array_equal(test.take(indices).labels, test.labels[:3])


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    write(tmp_path, CIFAR10_BINARY)
    monkeypatch.setenv("TANGENTLESS_DATA", str(tmp_path))
    assert len(load("cifar10", verify=False).test) == 2


@pytest.mark.parametrize("read", [lambda f: load("cifar10", f), lambda f: load("digits", f), lambda f: find_tables(f)])
def test_a_named_folder_that_is_not_there_is_an_error_and_no_download(read, tmp_path):
    missing, file = tmp_path / "typo", tmp_path / "file"
    file.touch()
    with pytest.raises(DatasetMissingError, match=r"there is no folder .*typo; name a folder with data sets"):
        read(missing)
    with pytest.raises(DatasetMissingError, match="file is not a folder; name a folder"):
        read(file)
    assert not missing.exists()


def test_an_environment_that_names_no_folder_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TANGENTLESS_DATA", str(tmp_path / "typo"))
    with pytest.raises(DatasetMissingError, match=r"no folder .*typo; the variable TANGENTLESS_DATA names it"):
        load("cifar10")
    assert len(load("digits").train) == 1000  # which comes with scikit-learn


@pytest.mark.parametrize(("name", "classes", "shape"), [("mnist", 10, (28, 28, 1)), ("cifar10", 10, (32, 32, 3))])
def test_the_published_files_have_their_pinned_checksums(name, classes, shape, data_folder):
    data = load(name, data_folder, download=False)
    assert data.train.images.shape == (60_000 if name == "mnist" else 50_000, *shape)
    assert data.test.images.shape == (10_000, *shape)
    assert len(set(data.train.labels)) == len(data.classes) == classes
    if name == "cifar10":
        assert set(np.bincount(data.test.labels)) == {1000}


def test_every_file_is_pinned_and_what_could_not_be_verified_is_named():
    editions = [edition for entry in CATALOGUE.values() for edition in entry.editions]
    for edition in editions:
        assert set(edition.digests) == set(edition.files())
        for digest in (*edition.digests.values(), *edition.remote.values()):
            kind, _, value = digest.partition(":")
            assert len(value) == {"md5": 32, "sha256": 64}[kind]
            assert int(value, 16)
    assert all(edition in editions for edition in PUBLISHED_ONLY)


def test_an_unknown_name_is_refused():
    with pytest.raises(ParameterError, match=r"there is no data set 'imagenet'; there are mnist, cifar10"):
        load("imagenet")


def test_missing_files_are_named_with_what_to_do(tmp_path):
    with pytest.raises(
        DatasetMissingError, match=r"CIFAR-10 is not in .*which have no cifar-10-binary.tar.gz or .*download=True"
    ):
        load("cifar10", tmp_path, download=False)
    write(tmp_path, {name: content for name, content in CIFAR10_BINARY.items() if "_3" not in name})
    with pytest.raises(DatasetMissingError, match=r"cifar-10-batches-bin lacks data_batch_3\.bin; put them there"):
        load("cifar10", tmp_path, download=False)


def test_a_tampered_file_is_refused_by_name(tmp_path):
    write(tmp_path, CIFAR10_BINARY)
    with pytest.raises(DatasetDamagedError, match=r"data_batch_1\.bin cannot be used: its sha256 is \w+.*get it again"):
        load("cifar10", tmp_path)
    write(tmp_path, {"cifar-100-python.tar.gz": tar_gz(CIFAR100_PICKLED)})
    with pytest.raises(DatasetDamagedError, match=r"cifar-100-python\.tar\.gz cannot be used: its md5 is"):
        load("cifar100", tmp_path)


HUGE_LABEL = cifar10_pickled(IMAGES, LABELS).replace(b"(K", b"(\x8a\x0d" + (10**30).to_bytes(13, "little") + b"K", 1)


@pytest.mark.parametrize(
    ("name", "file", "content", "problem"),
    [
        ("cifar10", "cifar-10-batches-bin/test_batch.bin", cifar10_binary(IMAGES, LABELS)[:-1], "not a multiple of"),
        ("cifar10", "cifar-10-batches-bin/test_batch.bin", b"", "not a multiple of"),
        ("cifar10", "cifar-10-batches-bin/test_batch.bin", b"\x0b" + bytes(3072), "labels from 11 to 11"),
        ("cifar10", "cifar-10-binary.tar.gz", tar_gz(CIFAR10_BINARY)[:-5000], "cut short or damaged"),
        ("cifar10", "cifar-10-binary.tar.gz", b"<html>not found</html>", "cut short or damaged"),
        ("cifar10", "cifar-10-binary.tar.gz", tar_gz({"readme.html": b""}), r"it has no data_batch_1\.bin"),
        ("cifar10", "cifar-10-batches-py/test_batch", cifar10_pickled(IMAGES, LABELS)[:-9], "cut short"),
        ("mnist", "mnist/t10k-images-idx3-ubyte", idx(random_images(3, (28, 28)))[:-1], "2,351 bytes follow"),
        ("mnist", "mnist/t10k-images-idx3-ubyte", idx(random_images(3, (9, 28))), r"shape \(9, 28, 1\)"),
        ("mnist", "mnist/t10k-images-idx3-ubyte", idx(random_images(4, (28, 28))), "4 images do not go with labels"),
        ("mnist", "mnist/t10k-labels-idx1-ubyte", b"\x1f\x8b", "does not have the header of an idx file"),
        ("cifar10.1", "cifar10.1_v6_data.npy", npy(IMAGES)[:-1], "not an array saved by NumPy"),
        ("cifar10.1", "cifar10.1_v6_data.npy", npy(IMAGES / 2), "it holds float64"),
        ("cifar10.1", "cifar10.1_v6_data.npy", b"PK\x03\x04", "not an array saved by NumPy"),
        ("cifar10", "cifar-10-batches-py/test_batch", HUGE_LABEL, "numbers from 0 to 255"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",  # zip files hold the time, and ids must be stable
)  # fmt: skip
def test_a_file_of_another_layout_is_refused_by_name(name, file, content, problem, tmp_path):
    mnist = {f"mnist/{split}-images-idx3-ubyte": idx(random_images(3, (28, 28))) for split in ("train", "t10k")}
    mnist |= {f"mnist/{split}-labels-idx1-ubyte": idx(labels_below(10, 3)) for split in ("train", "t10k")}
    arrays = {"cifar10.1_v6_data.npy": npy(IMAGES), "cifar10.1_v6_labels.npy": npy(LABELS)}
    whole = CIFAR10_PICKLED if "-py" in file else CIFAR10_BINARY if "-bin/" in file else {}
    write(tmp_path, {"mnist": mnist, "cifar10.1": arrays, "cifar10": whole}[name] | {file: content})
    with pytest.raises(DatasetDamagedError, match=problem) as raised:
        load(name, tmp_path, download=False, verify=False)
    assert os.path.basename(file) in str(raised.value)  # noqa: PTH119


def test_a_damaged_gz_is_refused_by_name(tmp_path):
    whole = gzip.compress(idx(random_images(3, (28, 28))))
    files = {f"{split}-labels-idx1-ubyte": idx(labels_below(10, 3)) for split in ("train", "t10k")}
    write(tmp_path, files | {"t10k-images-idx3-ubyte": idx(random_images(3, (28, 28)))})
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(whole[:-20])
    with pytest.raises(DatasetDamagedError, match=r"train-images-idx3-ubyte\.gz cannot be used: it is cut short"):
        load("mnist", tmp_path, verify=False)


class Runs:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(5))
def test_a_malicious_pickle_is_refused_and_runs_nothing(protocol, tmp_path):
    mark = tmp_path / "executed"
    content = pickle.dumps({"data": Runs(mark), "labels": [1]}, protocol)
    write(tmp_path, CIFAR10_PICKLED | {"cifar-10-batches-py/test_batch": content})
    with pytest.raises(DatasetDamagedError, match=r"test_batch cannot be used: it (imports|has the instruction)"):
        load("cifar10", tmp_path, download=False, verify=False)
    assert not mark.exists()
    pickle.loads(content)  # the pickle module does run it
    assert mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(S'x'\ntR(K\x01t}b.",  # the state is no tuple
        b"cnumpy\nndarray\nK\x00\x85R.",  # arrays must be made by `_reconstruct`, not by the class
        b"cnumpy\ndtype\nU\x02u1\x85RK\x01\x85R.",  # the dtype that was made is called
        b"cnumpy.core.multiarray\n_reconstruct\nNR(K\x01K\x02cnumpy\ndtype\nNRNU\x00tb.",  # the dtype is missing
        b"(cos\nsystem\nS'true'\no.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x82\x01.",  # a registered extension
        b"Pid\n.",  # a persistent object
        b"T\xff\xff\xff\x7fshort.",
        b"",
        b"...",
        b"}(]K\x01u.",  # a list as a key
        b"K\x01K\x02.",
        b"K\x01K\x02a.",
    ],
)  # fmt: skip
def test_a_pickle_of_anything_but_plain_data_is_refused(content):
    with pytest.raises(UnreadablePickle):
        read_pickle(content)


def test_a_pickle_that_asks_for_four_billion_places_gets_one():
    assert read_pickle(b"]r\xff\xff\xff\xff.") == []


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (array_2(np.zeros((2, 3), np.uint8), dtype=b"O8"), "other than uint8"),
        (array_2(np.zeros((2, 3), np.uint8), body=b"12345"), r"shape \(2, 3\) with 5 bytes"),
        (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87R", "without values"),
    ],
)
def test_an_array_that_is_not_what_it_says_is_refused(array, problem):
    with pytest.raises(UnreadablePickle, match=problem):
        read_pickle(b"\x80\x02}(" + text("data") + array + b"u.")


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_mutated_pickles_are_refused_or_read_but_never_fail_otherwise():
    good, generator = cifar10_pickled(IMAGES[:1, :2, :2], LABELS[:1]), np.random.default_rng(0)
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        for place, other in generator.integers(0, len(data), (generator.integers(1, 4), 2)):
            data[place] = good[other] if generator.random() < 0.5 else generator.integers(256)
        try:
            read_pickle(bytes(data))
        except UnreadablePickle:
            refused += 1
    assert refused > 1000


def test_plain_pickles_of_both_protocols_are_read_as_pickle_reads_them():
    value = {"a": [1, -7, 300, 70_000, "x"], "b": {"c": [None, True, False]}, "d": (), "e": (1, 2, (3, "é"))}
    for protocol in (0, 1, 2):
        content = pickletools.optimize(pickle.dumps(value, protocol))
        assert read_pickle(content) == read_pickle(pickle.dumps(value, protocol)) == value


def test_the_pickles_of_python_2_written_here_are_what_pickle_reads():
    content = cifar10_pickled(IMAGES, LABELS)
    theirs = pickle.loads(content, encoding="latin1")
    ours = read_pickle(content)
    assert theirs.keys() == ours.keys()
    np.testing.assert_array_equal(theirs["data"], planes(IMAGES))
    np.testing.assert_array_equal(ours["data"], planes(IMAGES))
    assert theirs["filenames"] == ours["filenames"]
    assert read_pickle(dictionary_2({"note": "x" * 300})) == {"note": "x" * 300}
