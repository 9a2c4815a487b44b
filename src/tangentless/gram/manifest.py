"""The manifest: what a store is a matrix of.

It names the kernel, the preprocessing, the data (by hash), the arithmetic, the tile size and the version, and carries
its own checksum. A store is only ever continued with the same; `differences` says in words what is not. Its bytes are a
function of these values alone, so any change to a single bit of the file shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreDamagedError, StoreVersionError

FORMAT = 1
_HASHED_AT_ONCE = 32 << 20


@dataclass(frozen=True)
class Data:
    """A set of images: its hash, shape and dtype."""

    sha256: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))

    @classmethod
    def of(cls, images: NDArray[Any]) -> Data:
        """Describe an array.

        >>> Data.of(np.zeros((3, 8, 8, 1), np.float32)).shape
        (3, 8, 8, 1)
        """
        return cls(hash_rows(images, len(images))[0], images.shape, images.dtype.name)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype of its bytes in a store."""
        return np.dtype(self.dtype).newbyteorder("<")


@dataclass(frozen=True)
class Manifest:
    """Everything a store depends on. `grown_from` lists the sizes a symmetric matrix had before it was extended."""

    kernel: str
    architectures: tuple[str, ...]
    preprocessing: str
    x: Data
    z: Data | None
    backend: str
    precision: str
    tile: int
    package: str
    grown_from: tuple[int, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        object.__setattr__(self, "architectures", tuple(self.architectures))
        object.__setattr__(self, "grown_from", tuple(self.grown_from))

    @property
    def symmetric(self) -> bool:
        """Whether this is the matrix of X with itself."""
        return self.z is None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return self.x.shape[0], (self.z or self.x).shape[0]

    @property
    def checksum(self) -> str:
        """The hash of all of the above."""
        return _checksum(asdict(self))

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON values, with its checksum.

        >>> manifest = Manifest("k", ("relu",), "", Data("00", (3, 2), "float64"), None, "cpu", "float32", 16, "0.1.0")
        >>> Manifest.from_json(manifest.to_json(), "k.zarr") == manifest
        True
        """
        return {**asdict(self), "checksum": self.checksum}

    @classmethod
    def from_json(cls, values: Any, where: str) -> Manifest:
        """Read a manifest whose checksum is right and whose format is known."""
        if not isinstance(values, dict) or values.get("checksum") != _checksum(values):
            raise StoreDamagedError(f"{where} is damaged, its checksum is wrong: run repair")
        if values["format"] > FORMAT:
            raise StoreVersionError(
                f"{where} has format {values['format']}, written by tangentless {values.get('package')}; "
                f"this version reads formats up to {FORMAT}: upgrade it"
            )
        known = {field.name: values[field.name] for field in fields(cls)}
        x, z = Data(**known.pop("x")), known.pop("z")
        return cls(x=x, z=Data(**z) if z else None, **known)

    def grown_to(self, x: Data) -> Manifest:
        """The same for a longer X."""
        return replace(self, x=x, grown_from=(*self.grown_from, self.x.shape[0]))


def differences(stored: Manifest, given: Manifest) -> Iterator[str]:
    """In words, where two manifests differ.

    >>> stored = Manifest("k", ("relu",), "", Data("00", (3, 2), "float64"), None, "cpu", "float32", 16, "0.1.0")
    >>> list(differences(stored, replace(stored, precision="float64")))
    ["precision is 'float32' in the store, 'float64' now"]
    """
    names = {"package": "the version of tangentless", "x": "X", "z": "Z"}
    for field in fields(Manifest):
        before, after = getattr(stored, field.name), getattr(given, field.name)
        if before == after or field.name == "grown_from":
            continue
        name = names.get(field.name, field.name)
        if isinstance(before, Data) and isinstance(after, Data):
            for part in fields(Data):
                old, new = getattr(before, part.name), getattr(after, part.name)
                if old != new:
                    yield f"the {part.name} of {name} is {old!r} in the store, {new!r} now"
        else:
            yield f"{name} is {before!r} in the store, {after!r} now"


def hash_rows(images: NDArray[Any], *counts: int) -> list[str]:
    """SHA-256 of the first rows, as little-endian bytes in C order, for each of some increasing counts.

    >>> X = np.arange(6.0).reshape(3, 2)
    >>> hash_rows(X, 2, 3) == [hash_rows(X[:2], 2)[0], hash_rows(X, 3)[0]]
    True
    """
    running, digests, start = hashlib.sha256(), [], 0
    step = max(1, _HASHED_AT_ONCE // max(1, images[:1].nbytes))
    for count in counts:
        while start < count:
            rows = images[start : min(start + step, count)]
            little = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<"))
            running.update(cast(Any, little.reshape(-1).view(np.uint8)))
            start += len(rows)
        digests.append(running.copy().hexdigest())
    return digests


def _checksum(values: dict[str, Any]) -> str:
    """Of all values but itself, whatever they are: it holds for formats to come."""
    others = {name: value for name, value in values.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()
