"""Small data sets in the exact file formats of their publishers, for the tests of the readers."""

import gzip
import io
import struct
import tarfile

import numpy as np


def random_images(count, shape=(32, 32, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels_below(classes, count, seed=0):
    return np.random.default_rng(seed).integers(0, classes, count)


def planes(images):
    """Images as rows of bytes: the red plane, then the green, then the blue."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def cifar10_binary(images, labels):
    return np.hstack([labels[:, None].astype(np.uint8), planes(images)]).tobytes()


def cifar100_binary(images, labels):
    coarse = labels // 5
    return np.hstack([np.column_stack([coarse, labels]).astype(np.uint8), planes(images)]).tobytes()


def idx(values):
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def npy(values):
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def text(value):
    """A text as Python 2 pickled it, with the opcode for short texts or that for long ones."""
    raw = value if isinstance(value, bytes) else value.encode()
    return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<I", len(raw)) + raw


def array_2(values, dtype=b"u1", body=None):
    """An array of bytes as Python 2 and NumPy 1 pickled it."""
    start = b"cnumpy.core.multiarray\n_reconstruct\nq\x20cnumpy\nndarray\nq\x21K\x00\x85U\x01b\x87R"
    shape = b"".join(b"J" + struct.pack("<i", side) for side in values.shape)
    kind = b"cnumpy\ndtype\n" + text(dtype) + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return start + b"(K\x01(" + shape + b"t" + kind + b"\x89" + text(values.tobytes() if body is None else body) + b"tb"


def dictionary_2(entries):
    """A dictionary as Python 2 pickled it (protocol 2): of texts, lists of numbers or texts, and arrays of bytes."""
    out, place = b"\x80\x02}q\x01(", 2
    for key, value in entries.items():
        out += text(key) + b"q" + bytes([place])
        place += 1
        if isinstance(value, list):
            numbers = (b"K" + bytes([item]) if isinstance(item, int) else text(item) for item in value)
            out += b"]q" + bytes([place]) + b"(" + b"".join(numbers) + b"e"
            place += 1
        else:
            out += array_2(value) if isinstance(value, np.ndarray) else text(value)
    return out + b"u."


def cifar10_pickled(images, labels):
    names = [f"image_s_{number:06}.png" for number in range(len(images))]
    entries = {"batch_label": "training batch 1 of 5", "labels": labels.tolist()}
    return dictionary_2(entries | {"data": planes(images), "filenames": names})


def cifar100_pickled(images, labels):
    entries = {"filenames": ["a.png"] * len(images), "batch_label": "training batch 1 of 1"}
    coarse = (labels // 5).tolist()
    return dictionary_2(entries | {"fine_labels": labels.tolist(), "coarse_labels": coarse, "data": planes(images)})


def tar_gz(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith("ubyte.gz") else content)
