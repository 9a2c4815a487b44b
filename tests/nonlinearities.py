"""User-defined nonlinearities for several tests."""

from dataclasses import dataclass

import numpy as np

from tangentless.layers import Nonlinearity


class Sine(Nonlinearity):
    """A smooth dual, which gets a fast form. It is not 1 at cosine 1."""

    name = "sine"

    def dual(self, cosine):
        return np.exp(-1.0) * np.sinh(cosine)

    def activation(self, preactivation):
        return np.sin(preactivation)


class Step(Nonlinearity):
    """The arc-cosine kernel of order zero. Its slope at 1 is infinite, so no short polynomial approximates it."""

    name = "step"

    def dual(self, cosine):
        return 1 - np.arccos(cosine) / np.pi

    def activation(self, preactivation):
        return np.sqrt(2.0) * (preactivation > 0)


@dataclass(frozen=True)
class Louder(Nonlinearity):
    """A nonlinearity that multiplies squared norms by its parameter."""

    gain_: float = 1.7
    name = "louder"

    def dual(self, cosine):
        return self.gain_ * (cosine + cosine**2) / 2

    def activation(self, preactivation):
        return np.sqrt(self.gain_ / 2) * (preactivation + (preactivation**2 - 1) / np.sqrt(2))
