"""What the tests of stores share: a small matrix, the hash of a store, and which of its tiles were touched."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

import tangentless as tl
from tangentless.gram import GramMatrix, gram

KERNEL = "normalize relu"  # of vectors, on the reference backend: tens of thousands of pairs a second
TILE = 8


def vectors(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((count, 5))


def make(store: str | Path, count: int, **options: Any) -> GramMatrix:
    defaults: dict[str, Any] = {"backend": "reference", "tile": TILE, "progress": False}
    return gram(KERNEL, vectors(count), store=store, **(defaults | options))


def expected(count: int) -> np.ndarray[Any, Any]:
    return tl.kernel(KERNEL)(vectors(count), backend="reference")


def contents(store: Path) -> dict[str, bytes]:
    """Every file that belongs to the matrix."""
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.stem != "writer" and path.parent.name != "tmp"
    }


def store_hash(store: Path, *, tiles_only: bool = False) -> str:
    digest = hashlib.sha256()
    for name, data in contents(store).items():
        if not tiles_only or name.startswith("kernel/c/"):
            digest.update(f"{name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def finished_tiles(store: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every tile in place: both change when a tile is written again."""
    tiles = {}
    for path in sorted((store / "kernel/c").rglob("*")):
        if path.is_file():
            entry = path.stat()
            tiles[path.relative_to(store).as_posix()] = (entry.st_ino, entry.st_mtime_ns)
    return tiles
