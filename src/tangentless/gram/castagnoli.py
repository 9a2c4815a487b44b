"""CRC-32C in NumPy alone, for machines without a compiled one: a few hundred MB/s.

A checksum without its conventional first and last inversion is linear, and zeros in front of the data do not change it.
So the data is cut into many pieces of equal length, which are walked side by side, eight bytes a step; the checksums
of neighbours are then joined, since that of `ab` is that of `a` followed by `len(b)` zeros, plus that of `b`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.uint32]
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_ONES = 0xFFFFFFFF
_PIECE = 512  # bytes, or up to twice as many


def value(data: Any) -> int:
    """The CRC-32C of a contiguous buffer of bytes.

    >>> hex(value(b"123456789"))
    '0xe3069283'
    """
    octets = np.frombuffer(data, dtype=np.uint8)
    pieces = 1 << max(0, (len(octets) // _PIECE).bit_length() - 1)
    steps = -(-len(octets) // (8 * pieces))
    words = np.zeros((pieces, steps), "<u8")
    words.reshape(-1).view(np.uint8)[words.nbytes - len(octets) :] = octets
    sums, length = _walk(words), 8 * steps
    while len(sums) > 1:
        sums = _followed_by_zeros(sums[::2], length) ^ sums[1::2]
        length *= 2
    inverted = _followed_by_zeros(np.array([_ONES], np.uint32), len(octets))
    return int(sums[0] ^ inverted[0]) ^ _ONES


def _walk(words: NDArray[np.uint64]) -> Values:
    """The checksum of every row."""
    tables = _tables()
    sums = np.zeros(len(words), np.uint32)
    for column in np.ascontiguousarray(words.T):
        pairs = (column ^ sums).view("<u2").reshape(-1, 4)
        sums = tables[0][pairs[:, 0]]
        for table, pair in zip(tables[1:], pairs.T[1:], strict=True):
            sums ^= table[pair]
    return sums


@functools.cache
def _tables() -> list[Values]:
    """What two bytes of a word do to the checksum: for each of its four pairs, by their value."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = (one >> np.uint32(1)) ^ np.where(one & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    pair = np.arange(65536, dtype=np.uint32)
    for _ in range(2):
        pair = (pair >> np.uint32(8)) ^ one[pair & 255]
    return [_followed_by_zeros(pair, count) for count in (6, 4, 2, 0)]


def _followed_by_zeros(sums: Values, count: int) -> Values:
    """Checksums after so many zero bytes more."""
    for power in range(count.bit_length()):
        if count >> power & 1:
            sums = _apply(_zeros(power), sums)
    return sums


@functools.cache
def _zeros(power: int) -> Values:
    """2**power zero bytes as a linear map: what becomes of each of the 32 bits."""
    if power > 0:
        return _apply(_zeros(power - 1), _zeros(power - 1))
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(8):
        bits = (bits >> np.uint32(1)) ^ np.where(bits & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return bits


def _apply(linear: Values, sums: Values) -> Values:
    result = np.zeros_like(sums)
    for place in range(32):
        result ^= linear[place] * (sums >> np.uint32(place) & np.uint32(1))
    return result
