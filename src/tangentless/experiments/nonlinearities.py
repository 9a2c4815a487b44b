"""Claim: as functions of the angle between features, the duals of ReLU and of the Gaussian are similar.

Both are 1 at angle 0. At angle π, ReLU's dual is 0 and the Gaussian's exp(-2). The figure draws the duals that the
kernels are computed with (`layers/`), and for comparison the cosine: the dual of the identity.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..layers import Gaussian, ReLU
from ..plots import COLOURS, new_axes, save_pictures


def draw(folder: Path) -> list[Path]:
    """Draw the figure; returns its files."""
    angles = np.linspace(0, np.pi, 361)
    cosines = np.cos(angles)
    figure, axes = new_axes(5.4, 3.6, "Duals of the nonlinearities", "angle between features", "f(cos angle)")
    curves = {"ReLU": ReLU().dual(cosines), "Gaussian, γ = 1": Gaussian().dual(cosines), "none: the cosine": cosines}
    for (name, values), colour, dash in zip(curves.items(), COLOURS, ("-", "-", ":"), strict=False):
        axes.plot(angles, values, dash, color=colour, label=name, linewidth=1.8)
    axes.set_xticks(np.pi * np.arange(5) / 4, ["0", "π/4", "π/2", "3π/4", "π"])
    axes.set_xlim(0, np.pi)
    axes.legend(frameon=False)
    return save_pictures(figure, folder, "nonlinearities")
