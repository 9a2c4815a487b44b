"""Gabor filters: how strongly waves of several lengths and directions answer in the parts of an image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..chunks import spans
from ..devices import Device

WAVELENGTHS, ORIENTATIONS, CELLS = (4.0, 6.0, 10.0), 8, 7
_IMAGES_AT_ONCE = {"cpu": 256, "cuda": 2048}


def gabor_features(images: NDArray[np.uint8], backend: str = "cpu") -> NDArray[np.float32]:
    """How strongly Gabor filters answer around the cells of a grid, from grey images: (N, cells, cells, filters).

    A filter is a wave under a Gaussian window. Of every wavelength and orientation, the even and the odd wave make an
    energy that does not depend on the wave's phase; its square root is averaged under soft windows around the cells,
    and each image's features are scaled to length one.

    >>> gabor_features(np.zeros((2, 28, 28, 1), np.uint8)).shape
    (2, 7, 7, 24)
    """
    side, on = images.shape[1], Device(backend).algebra
    xp = on.xp
    with on.working():
        waves, pool = on.upload(np.fft.fft2(_gabor_waves(side), axes=(1, 2))), on.upload(_pooling(side))
        features = np.empty((len(images), CELLS, CELLS, len(waves)), np.float32)
        for part in spans(len(images), _IMAGES_AT_ONCE[on.name]):
            pixels = on.upload((images[part, :, :, 0] / 255).astype(np.float32))
            spectra = xp.fft.fft2(pixels, waves.shape[1:], axes=(1, 2))
            energies = xp.abs(xp.fft.ifft2(spectra[:, None] * waves, axes=(2, 3)))[:, :, :side, :side]
            cells = xp.einsum("ai,nfij,bj->nabf", pool, energies, pool, optimize=True)
            lengths = xp.sqrt(xp.square(cells).sum(axis=(1, 2, 3), keepdims=True))
            features[part] = on.download(cells / xp.where(lengths > 0, lengths, 1.0))
    return features


def _gabor_waves(side: int) -> NDArray[np.complex128]:
    """Complex waves under Gaussian windows, centred at the origin of a torus twice as wide as the image."""
    places = np.fft.fftfreq(2 * side, 1 / (2 * side))
    y, x = np.meshgrid(places, places, indexing="ij")
    waves = []
    for wavelength in WAVELENGTHS:
        window = np.exp(-(x**2 + y**2) / (2 * (wavelength / 2) ** 2))
        for turn in range(ORIENTATIONS):
            angle = np.pi * turn / ORIENTATIONS
            wave = window * np.exp(2j * np.pi / wavelength * (x * np.cos(angle) + y * np.sin(angle)))
            wave -= window * wave.sum() / window.sum()  # a flat image gets no answer
            waves.append(wave / np.abs(wave).sum())
    return np.stack(waves)


def _pooling(side: int) -> NDArray[np.float64]:
    """Weights of the pixels of a line around each cell, (cells, side)."""
    centres = (np.arange(CELLS) + 0.5) * side / CELLS - 0.5
    weights = np.exp(-((np.arange(side) - centres[:, None]) ** 2) / (2 * (side / CELLS / 2) ** 2))
    pooled: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return pooled
