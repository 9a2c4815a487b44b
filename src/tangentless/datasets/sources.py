"""Where the files of a data set are: in a folder, plain or as .gz, or all in one .tar.gz.

Files are checked against their published digests. Archives are read in memory: nothing is unpacked to disk.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DatasetDamagedError, DatasetError
from .catalogue import Digest, Edition

LARGEST = 400_000_000  # bytes of a file, about twice the largest one: a small .gz must not fill the memory


@dataclass(frozen=True)
class Source:
    """A place that holds an edition, or part of one."""

    edition: Edition
    place: Path  # the folder of the files, or the archive

    def missing(self) -> tuple[str, ...]:
        """The missing files; for an archive always none, since it is opened only when it is read."""
        if self.place.is_file():
            return ()
        return tuple(name for name in self.edition.files() if self._find(name) is None)

    def read(self, *, verify: bool) -> dict[str, bytes]:
        """The contents of all files by name; with `verify`, checked against their digests."""
        if self.place.is_file():
            contents = self._read_archive(verify)
        else:
            found = {name: self._find(name) for name in self.edition.files()}
            contents = {name: read_file(path) for name, path in found.items() if path is not None}
        for name, content in contents.items() if verify else ():
            check_digest(self.place / name, content, self.edition.digests[name])
        return contents

    def _find(self, name: str) -> Path | None:
        names = (name, f"{name}.gz") if self.edition.zipped else (name,)
        return next((path for name in names if (path := self.place / name).is_file()), None)

    def _read_archive(self, verify: bool) -> dict[str, bytes]:
        if verify:
            (digest,) = self.edition.remote.values()
            check_digest(self.place, read_file(self.place, unzip=False), digest)
        wanted = {f"{self.edition.folders[0]}/{name}": name for name in self.edition.files()}
        contents = {}
        # "r|gz" reads front to back: the archive is decompressed only once.
        with _reading(self.place), tarfile.open(self.place, "r|gz") as archive:
            for member in archive:
                if member.name in wanted and member.isreg() and member.size <= LARGEST:
                    stream = archive.extractfile(member)
                    contents[wanted[member.name]] = stream.read() if stream else b""
        if lacking := [name for name in self.edition.files() if name not in contents]:
            raise damaged(self.place, f"it has no {', '.join(lacking)}")
        return contents


def find_sources(editions: tuple[Edition, ...], folder: Path) -> Iterator[Source]:
    """Every place in a folder that holds at least one file of an edition."""
    for edition in editions:
        for below in edition.folders:
            # The data folder may itself be the folder with the files.
            for place in (folder / below, folder) if folder.name == below else (folder / below,):
                source = Source(edition, place)
                if place.is_dir() and len(source.missing()) < len(edition.files()):
                    yield source
        if edition.archive is not None and (folder / edition.archive).is_file():
            yield Source(edition, folder / edition.archive)


def check_digest(path: Path, content: bytes, digest: Digest) -> None:
    """Raise an error that names the file if its content does not have the digest."""
    kind, _, expected = digest.partition(":")
    if (found := hashlib.new(kind, content, usedforsecurity=False).hexdigest()) != expected:
        raise damaged(path, f"its {kind} is {found}, but the published file has {expected}")


def read_file(path: Path, *, unzip: bool = True) -> bytes:
    """The content of a file; of a .gz that of the file in it, unless `unzip` is off."""
    with _reading(path), gzip.open(path) if unzip and path.suffix == ".gz" else path.open("rb") as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise damaged(path, f"it is longer than {LARGEST:,} bytes")
    return content


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into the typed errors of this package."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise damaged(path, f"it is cut short or damaged ({error})") from None
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from None


def damaged(path: Path, problem: str) -> DatasetDamagedError:
    """An error that names the file and says what to do."""
    return DatasetDamagedError(f"{path} cannot be used: {problem}; delete it and get it again from its publisher")
