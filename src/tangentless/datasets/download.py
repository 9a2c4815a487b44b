"""Downloads that resume after a break, and are kept only if they have the published digest.

Received bytes are appended to `.NAME.part` beside the target, under a lock. After a broken connection, or in a later
process, only the missing bytes are requested. pooch then checks the digest and moves the file to its place.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from ..errors import DownloadError
from ..progress import Progress, progress_bar
from .catalogue import Digest

try:
    import fcntl
except ImportError:  # Windows: a lock file beside the part is used, and stays there
    fcntl = None  # type: ignore[assignment]

TRIES = 4  # give up after so many requests in a row that bring no bytes
_PAUSE = 0.5  # the pause after n such requests is _PAUSE * 2**n seconds
_WAIT = (10.0, 60.0)  # time limits in seconds: to connect, and for the next bytes
_CHUNK = 1 << 18


def fetch(address: str, digest: Digest | None, folder: Path) -> Path:
    """Download a file into the folder, unless it is there already. Without a digest, any content is accepted."""
    import pooch

    target = folder / address.rpartition("/")[2]
    part = target.with_name(f".{target.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _hold(part) as stream, progress_bar(f"downloading {target.name}", unit="kB") as progress:
            if not target.is_file():  # another process may have been first
                get = functools.partial(_get, stream=stream, progress=progress)
                pooch.retrieve(address, digest, fname=target.name, path=folder, downloader=get)
    except ValueError:  # pooch raises it for a wrong digest
        part.unlink(missing_ok=True)
        raise DownloadError(
            f"the file that {address} sent does not have the published checksum, and was deleted; try again, "
            f"or get the file elsewhere and put it in {folder}"
        ) from None
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(f"cannot write {target}: {error.strerror or error}") from None
    part.unlink(missing_ok=True)
    return target


def _get(address: str, output: str, _: Any, *, stream: BinaryIO, progress: Progress) -> None:
    """Complete the partial file, in as many requests as that takes, and copy it to the output."""
    import requests
    from urllib3.exceptions import HTTPError

    failures, problem = 0, ""
    while failures < TRIES:
        before = stream.seek(0, os.SEEK_END)
        try:
            if _request(address, stream, progress):
                stream.seek(0)
                with Path(output).open("wb") as copy:
                    shutil.copyfileobj(stream, copy, _CHUNK)
                return
            problem = "the connection broke"
        except (requests.RequestException, HTTPError) as error:
            problem = str(error)
            if _is_final(error):
                break
        failures = 0 if stream.seek(0, os.SEEK_END) > before else failures + 1
        time.sleep(_PAUSE * 2**failures if failures else 0)
    raise DownloadError(
        f"cannot download {address}: {problem}; try again, which continues after the {stream.seek(0, os.SEEK_END):,} "
        f"bytes received so far, or get the file by other means and put it in {Path(stream.name).parent}"
    )


def _request(address: str, stream: BinaryIO, progress: Progress) -> bool:
    """Request the missing bytes and append them; returns whether the file is complete."""
    import requests

    have = stream.seek(0, os.SEEK_END)
    # A server that compresses on the way would send bytes with another digest.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(address, headers=headers, stream=True, timeout=_WAIT) as response:
        start, total = _extent(response)
        if response.status_code == 416:  # nothing to send: the part is complete, or is part of another file
            if total != have:
                stream.truncate(0)
            return total == have
        response.raise_for_status()
        if start != have:  # a server may ignore the range and send the whole file
            have = stream.truncate(0)
            if start != 0:
                return False
        try:
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                stream.write(chunk)
                have += len(chunk)
                progress(have // 1000, (total or have) // 1000)
        finally:
            stream.flush()
    return total is None or have == total


def _is_final(error: Exception) -> bool:
    """Whether the server refuses the file for good, for example because it does not exist."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is not None and 400 <= status < 500 and status not in (408, 429)


def _extent(response: Any) -> tuple[int, int | None]:
    """The offset of the first byte of a response, and the length of the whole file if the server says it."""
    start, total = "0", response.headers.get("Content-Length", "")
    if response.status_code in (206, 416):
        span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        start = span.partition("-")[0]
    return int(start) if start.isdigit() else 0, int(total) if total.isdigit() else None


@contextlib.contextmanager
def _hold(part: Path) -> Iterator[BinaryIO]:
    """The partial file, open for appending by one process at a time. File systems without locks are not guarded."""
    if fcntl is None:
        with FileLock(part.with_suffix(".lock")), part.open("a+b") as stream:
            yield stream
        return
    while True:
        with part.open("a+b") as stream:
            with contextlib.suppress(OSError):
                fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
            # The process that held the lock may have deleted the file: then this stream is not the file of that name.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(stream.fileno()), part.stat()):
                    yield stream
                    return
