"""A power law of the test error against the number n of training images, `a n^-b`, fitted to a learning curve.

Each size is weighted by the sampling error of its accuracy. Intervals cover this sampling error only: they assume that
the law holds beyond the data and that sizes are independent, though sizes of one curve share images. So they are too
narrow; read them as a guide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """`error = exp(start) n^-slope`, with the covariance of `(start, slope)`.

    >>> law = PowerLaw.fit([1000, 2000, 4000], [0.4, 0.2, 0.1], [10_000] * 3)
    >>> round(law.slope, 6), round(law.error(8000), 6), round(law.size(0.05))
    (1.0, 0.05, 8000)
    """

    start: float
    slope: float
    covariance: Array

    @classmethod
    def fit(cls, sizes: Sequence[int], errors: Sequence[float], rows: Sequence[int]) -> PowerLaw:
        """Fit by weighted least squares in logarithms.

        `errors` are shares of wrong predictions, one for each size; `rows` are the numbers of test images behind them.
        """
        share = np.asarray(errors, dtype=np.float64)
        if not ((share > 0) & (share < 1)).all():
            raise InputError(f"a power law needs errors above 0 and below 1, not {share.tolist()}")
        spread = np.sqrt((1 - share) / (share * np.asarray(rows)))  # standard deviation of log(share)
        across = -np.log(np.asarray(sizes, dtype=np.float64))
        (slope, start), covariance = np.polyfit(across, np.log(share), 1, w=1 / spread, cov="unscaled")
        # Where points scatter more than sampling explains, scale the covariance up (reduced chi-squared).
        apart = (start + slope * across - np.log(share)) / spread
        excess = float(np.sum(apart**2)) / max(len(share) - 2, 1)
        return cls(float(start), float(slope), covariance[::-1, ::-1] * max(1.0, excess))

    def error(self, size: float) -> float:
        """The error at a number of training images."""
        return math.exp(self.start - self.slope * math.log(size))

    def size(self, error: float) -> float:
        """The number of training images at which the error is reached."""
        return math.exp((self.start - math.log(error)) / self.slope)

    def size_interval(self, error: float) -> tuple[float, float]:
        """A 95 % interval of `size(error)`, by linear propagation of the covariance."""
        by = np.array([1.0, -(self.start - math.log(error)) / self.slope]) / self.slope
        reach = 1.96 * math.sqrt(float(by @ self.covariance @ by))
        return self.size(error) * math.exp(-reach), self.size(error) * math.exp(reach)


def describe_laws(rows: Sequence[Any], goal: float = 0.912) -> str:
    """A paragraph on the power laws of a learning curve, by leave-one-out and by test accuracy.

    For each it states at how many images the accuracy `goal` would be passed, and the GPU-hours of kernel entries.
    """
    last = max(rows, key=lambda row: row["train"])
    rate = last["pairs"] / last["spent"]["kernel"]
    sizes, note = [row["train"] for row in rows], last.get("note")
    laws = {
        "leave-one-out": ([1 - row["leave-one-out accuracy"] for row in rows], sizes),
        f"{last['rows']:,} test images": ([1 - row["accuracy"] for row in rows], [row["rows"] for row in rows]),
    }
    words = [
        f"The test error of {last['method']} falls as a power of the number of training images, here fitted from "
        f"{min(sizes):,} to {max(sizes):,} ({last['machine']}, {rate:,.0f} pairs/s{f'; {note}' if note else ''}):\n"
    ]
    for name, (errors, counts) in laws.items():
        law = PowerLaw.fit(sizes, errors, counts)
        if law.slope <= 1.96 * math.sqrt(law.covariance[1, 1]):
            words.append(f"- by {name}: the error does not fall by more than chance explains: nothing follows from it.")
            continue
        reach = [law.size(1 - goal), *law.size_interval(1 - goal)]
        hours = [size**2 / 2 * (2 if last["flips"] else 1) / rate / 3600 for size in reach]
        images, low, high = (f"{round(size, -3):,.0f}" for size in reach)
        words.append(
            f"- by {name}: an error of {100 * law.error(10_000):.1f} % at 10,000 images, times 2^-{law.slope:.3f} for "
            f"every doubling. An accuracy of {100 * goal:.1f} % would be passed at {images} images ({low} to {high}), "
            f"whose kernel entries take {hours[0]:.1f} GPU-hours ({hours[1]:.1f} to {hours[2]:.1f})."
        )
    words.append(
        "\nThis is an extrapolation: CIFAR-10 has only 50,000 training images, further rows would have to be augmented "
        "copies, which are worth less, and the matrix would not fit on a single GPU. Intervals cover sampling only."
    )
    return "\n".join(words) + "\n"
