"""Features of Gabor filters: the energy of waves of several lengths and orientations, in the cells of a grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..chunks import spans
from ..devices import Device

WAVELENGTHS, ORIENTATIONS, CELLS = (4.0, 6.0, 10.0), 8, 7
_IMAGES_AT_ONCE = {"cpu": 256, "cuda": 2048}


def gabor_features(images: NDArray[np.uint8], backend: str = "cpu") -> NDArray[np.float32]:
    """Responses of Gabor filters to grey images (N, side, side, 1): (N, cells, cells, filters).

    A filter is a complex wave under a Gaussian window, one for every wavelength and orientation. The modulus of its
    response does not depend on the phase of the wave. It is averaged under Gaussian windows around the cells, and the
    features of each image are scaled to length one.

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
    """Complex waves under Gaussian windows, (filters, 2 side, 2 side), centred at index (0, 0) of a torus."""
    places = np.fft.fftfreq(2 * side, 1 / (2 * side))
    y, x = np.meshgrid(places, places, indexing="ij")
    waves = []
    for wavelength in WAVELENGTHS:
        window = np.exp(-(x**2 + y**2) / (2 * (wavelength / 2) ** 2))
        for turn in range(ORIENTATIONS):
            angle = np.pi * turn / ORIENTATIONS
            wave = window * np.exp(2j * np.pi / wavelength * (x * np.cos(angle) + y * np.sin(angle)))
            wave -= window * wave.sum() / window.sum()  # the response to a constant image is zero
            waves.append(wave / np.abs(wave).sum())
    return np.stack(waves)


def _pooling(side: int) -> NDArray[np.float64]:
    """Gaussian weights of the pixels of a line around the centre of each cell, (cells, side)."""
    centres = (np.arange(CELLS) + 0.5) * side / CELLS - 0.5
    weights = np.exp(-((np.arange(side) - centres[:, None]) ** 2) / (2 * (side / CELLS / 2) ** 2))
    pooled: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return pooled
