"""The published files of each data set: addresses, layouts and checksums.

Every file is checked against its digest in `digests.csv`. The digests of MNIST and of the binary CIFAR-10 were computed
from the files. The others were copied from their publishers or from widely used libraries, and never compared with the
files: `PUBLISHED_ONLY` lists those editions. MNIST is downloaded from a mirror by Google, since its own site refuses
downloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from ..files import read_csv
from . import formats

Digest = str  # "sha256:..." or "md5:..."


@dataclass(frozen=True)
class Edition:
    """One form in which a data set is published."""

    read: formats.Reader
    train: tuple[tuple[str, ...], ...]  # groups of files; `read` takes the contents of one group
    test: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]  # where the files may be, relative to the data folder
    digests: Mapping[str, Digest]  # of each file
    remote: Mapping[str, Digest]  # addresses to download, with the digest of what each sends
    archive: str | None = None  # the name of a .tar.gz that contains the first of `folders`
    zipped: bool = False  # whether each file may also be there as .gz

    def files(self) -> tuple[str, ...]:
        """All of its files."""
        return tuple(name for part in self.train + self.test for name in part)


@dataclass(frozen=True)
class Entry:
    """A data set and its editions."""

    title: str
    classes: tuple[str, ...]  # label i is classes[i]
    shape: tuple[int, int, int]  # of an image, (H, W, C)
    editions: tuple[Edition, ...] = field(repr=False)  # the first one is downloaded


_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_CLASSES = tuple(  # one per line would be a hundred lines
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
    man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
    pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905
)

_DIGESTS: dict[str, dict[str, Digest]] = {}  # by edition and file; "EDITION remote" has those of downloads
for _row in read_csv(__package__, "digests.csv"):
    _DIGESTS.setdefault(_row["edition"], {})[_row["file"]] = _row["digest"]


def _below(address: str, digests: Mapping[str, Digest]) -> dict[str, Digest]:
    return {f"{address}/{name}": digest for name, digest in digests.items()}


def _cifar(read: formats.Reader, folder: str) -> Edition:
    """An edition of CIFAR: one archive, whose last file in `digests.csv` holds the test images."""
    *train, test = ((name,) for name in _DIGESTS[folder])
    packed = _DIGESTS[f"{folder} remote"]
    remote = _below("https://www.cs.toronto.edu/~kriz", packed)
    return Edition(read, tuple(train), (test,), (folder,), _DIGESTS[folder], remote, archive=next(iter(packed)))


_MNIST = Edition(
    formats.read_mnist,
    train=(("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),),
    test=(("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),),
    folders=("mnist", "MNIST/raw", "."),
    digests=_DIGESTS["mnist"],
    remote=_below("https://storage.googleapis.com/cvdf-datasets/mnist", _DIGESTS["mnist remote"]),
    zipped=True,
)
_CIFAR101_ARRAYS = Edition(
    formats.read_arrays,
    train=(),
    test=(tuple(_DIGESTS["cifar-10.1"]),),
    folders=("cifar-10.1", "CIFAR-10.1/datasets", "."),
    digests=_DIGESTS["cifar-10.1"],
    remote=_below("https://raw.githubusercontent.com/modestyachts/CIFAR-10.1/master/datasets", _DIGESTS["cifar-10.1"]),
)
_CIFAR10_BINARY = _cifar(partial(formats.read_rows, labels=1), "cifar-10-batches-bin")
_CIFAR10_PICKLED = _cifar(partial(formats.read_dictionary, key="labels"), "cifar-10-batches-py")
_CIFAR100_BINARY = _cifar(partial(formats.read_rows, labels=2), "cifar-100-binary")
_CIFAR100_PICKLED = _cifar(partial(formats.read_dictionary, key="fine_labels"), "cifar-100-python")

PUBLISHED_ONLY = (_CIFAR10_PICKLED, _CIFAR100_BINARY, _CIFAR100_PICKLED, _CIFAR101_ARRAYS)
CATALOGUE = {
    "mnist": Entry("MNIST", tuple("0123456789"), (28, 28, 1), (_MNIST,)),
    "cifar10": Entry("CIFAR-10", _CIFAR10_CLASSES, (32, 32, 3), (_CIFAR10_BINARY, _CIFAR10_PICKLED)),
    "cifar10.1": Entry("CIFAR-10.1", _CIFAR10_CLASSES, (32, 32, 3), (_CIFAR101_ARRAYS,)),
    "cifar100": Entry("CIFAR-100", _CIFAR100_CLASSES, (32, 32, 3), (_CIFAR100_BINARY, _CIFAR100_PICKLED)),
}
