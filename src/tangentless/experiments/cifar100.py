"""Claim: the kernel that is best on CIFAR-10 learns CIFAR-100 too, and flips help.

One trial: Myrtle10-Gaussian with the paper's ridge, 1e-4, and ZCA with epsilon 1e-4.
"""

from __future__ import annotations

from .tables import TILTS, Method, Preprocessing, Table
from .whitening import Whitening

_BEST = "myrtle10-gaussian"


def table(copies: int = 0) -> Table:
    """The table; ZCA is fitted to the training images and to `copies` augmented copies of each."""
    zca = Whitening(epsilon=1e-4, copies=copies)
    return Table(
        "cifar100",
        (
            Method(_BEST, "zca", _BEST, ridge=1e-4),
            Method(f"{_BEST}+flips", "zca", _BEST, ridge=1e-4, flips=True),
        ),
        {"zca": Preprocessing(zca.to_json(), zca.fit)},
        tilts=TILTS,
    )
