"""What is published where: the files of each data set, how they are read, and their checksums.

Every file is checked against the digest here. Those of MNIST and of the binary CIFAR-10 were computed from the files;
the others are those that their publishers or widely used libraries give, and the files themselves were not at hand:
`PUBLISHED_ONLY` names those editions. MNIST's own site turns downloads away, so they come from a mirror of Google's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from . import formats

Digest = str  # "sha256:..." or "md5:..."


@dataclass(frozen=True)
class Edition:
    """One form in which a data set is published."""

    read: formats.Reader
    train: tuple[tuple[str, ...], ...]  # the files that are read together, in order
    test: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]  # where they lie, below the data folder
    digests: Mapping[str, Digest]
    remote: Mapping[str, Digest]  # the addresses that it is downloaded from
    archive: str | None = None  # a .tar.gz that holds the first of the folders
    zipped: bool = False  # whether each file may also lie there as .gz

    def files(self) -> tuple[str, ...]:
        """All of its files."""
        return tuple(name for part in self.train + self.test for name in part)


@dataclass(frozen=True)
class Entry:
    """A data set: title, classes in the order of their labels, and editions; the first one is downloaded."""

    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    editions: tuple[Edition, ...] = field(repr=False)


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

_MNIST_DIGESTS = {
    "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_MNIST_ZIPPED = {
    "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_CIFAR101_DIGESTS = {
    "cifar10.1_v6_data.npy": "sha256:2997188e5816f5bd545dc77771b6227828c28146049fcecf3fa10775474cacc6",
    "cifar10.1_v6_labels.npy": "sha256:ae40beda001693674edc94d925ee8268cfe68905f8f9aff800c8dcdfcd6c9448",
}


def _below(address: str, digests: Mapping[str, Digest]) -> dict[str, Digest]:
    return {f"{address}/{name}": digest for name, digest in digests.items()}


def _cifar(read: formats.Reader, folder: str, archive: str, md5: str, digests: Mapping[str, Digest]) -> Edition:
    """An edition of CIFAR, of which the last file is that of the test images."""
    *train, test = ((name,) for name in digests)
    remote = _below("https://www.cs.toronto.edu/~kriz", {archive: f"md5:{md5}"})
    return Edition(read, tuple(train), (test,), (folder,), digests, remote, archive)


_MNIST = Edition(
    formats.read_mnist,
    train=(("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),),
    test=(("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),),
    folders=("mnist", "MNIST/raw", "."),
    digests=_MNIST_DIGESTS,
    remote=_below("https://storage.googleapis.com/cvdf-datasets/mnist", _MNIST_ZIPPED),
    zipped=True,
)
_CIFAR101_ARRAYS = Edition(
    formats.read_arrays,
    train=(),
    test=(tuple(_CIFAR101_DIGESTS),),
    folders=("cifar-10.1", "CIFAR-10.1/datasets", "."),
    digests=_CIFAR101_DIGESTS,
    remote=_below("https://raw.githubusercontent.com/modestyachts/CIFAR-10.1/master/datasets", _CIFAR101_DIGESTS),
)
_CIFAR10_BINARY = _cifar(
    partial(formats.read_rows, labels=1),
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    {
        "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
)
_CIFAR10_PICKLED = _cifar(
    partial(formats.read_dictionary, key="labels"),
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    {
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
)
_CIFAR100_BINARY = _cifar(
    partial(formats.read_rows, labels=2),
    "cifar-100-binary",
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    {
        "train.bin": "sha256:f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "test.bin": "sha256:d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    },
)
_CIFAR100_PICKLED = _cifar(
    partial(formats.read_dictionary, key="fine_labels"),
    "cifar-100-python",
    "cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    {"train": "md5:16019d7e3df5f24257cddd939b257f8d", "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"},
)

PUBLISHED_ONLY = (_CIFAR10_PICKLED, _CIFAR100_BINARY, _CIFAR100_PICKLED, _CIFAR101_ARRAYS)
CATALOGUE = {
    "mnist": Entry("MNIST", tuple("0123456789"), (28, 28, 1), (_MNIST,)),
    "cifar10": Entry("CIFAR-10", _CIFAR10_CLASSES, (32, 32, 3), (_CIFAR10_BINARY, _CIFAR10_PICKLED)),
    "cifar10.1": Entry("CIFAR-10.1", _CIFAR10_CLASSES, (32, 32, 3), (_CIFAR101_ARRAYS,)),
    "cifar100": Entry("CIFAR-100", _CIFAR100_CLASSES, (32, 32, 3), (_CIFAR100_BINARY, _CIFAR100_PICKLED)),
}
