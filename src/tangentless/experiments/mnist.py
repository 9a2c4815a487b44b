"""Claim: on MNIST, kernels with convolutional structure are about equally accurate, and better than those without.

One trial, the whole test set. Pixels are scaled to [0, 1]; there is no other preprocessing. Myrtle5 has the paper's
ridge, 1e-4. The paper does not give the parameters of the kernels without convolutions. Here the bandwidth, order or
depth, and the ridge, have the best leave-one-out accuracy on 4,000 training images; a smaller ridge replaces that one
if it is better on all training images. The paper cites its figure for the convolutional kernel network; here one of two
layers is learnt from the training images, with width and contrast chosen in the same way. So are random patches (Coates
and Ng), of which the paper has figures for CIFAR-10 only: a filter for every twenty training images, with threshold and
cells chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sklearn.preprocessing import FunctionTransformer

from ..classical import NNGP, NTK, ArcCosine, Gaussian, median_squared_distance
from ..features import ConvolutionalKernelNetwork, RandomPatchFeatures
from ..kernel import Kernel
from ..preprocessing import Standardize
from ..preprocessing.gabor import CELLS, ORIENTATIONS, WAVELENGTHS, gabor_features
from .tables import Candidates, Images, Method, Preprocessing, Table, learnt_features

_FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0)  # the Gaussian's gamma, times the median squared distance
_ORDERS, _NNGP_DEPTHS, _NTK_DEPTHS = (0, 1, 2), (3, 4, 5, 6), (2, 3, 4, 5, 6)


def _gaussians(images: Images) -> Sequence[Kernel]:
    """Gaussian kernels of several bandwidths around the median distance."""
    median = median_squared_distance(images)
    return [Gaussian(factor / median) for factor in _FACTORS]


GAUSSIANS = Candidates({"Gaussian by the inverse median squared distance": _FACTORS}, _gaussians)
ARC_COSINES = Candidates(  # orders 0 to 2, and order 1 iterated: the NNGP kernel of a ReLU network
    {"ArcCosine": _ORDERS, "NNGP": _NNGP_DEPTHS},
    lambda images: [*map(ArcCosine, _ORDERS), *map(NNGP, _NNGP_DEPTHS)],
)
_NETWORK: dict[str, Any] = {"filters": (64, 512), "patches": (5, 3), "pools": (2, 2)}
_VARIED = [{"width": width, "contrast": contrast} for width in (0.5, 0.7) for contrast in (None, 0.12)]
NETWORKS = learnt_features(ConvolutionalKernelNetwork, [_NETWORK | one for one in _VARIED])
_PATCHES: dict[str, Any] = {"overlap": 0.6, "contrast": 0.12, "epsilon": 0.1}
_CELLS = [{"pool": pool, "bias": bias} for pool in (3, 4) for bias in (0.5, 1.0)]
PATCHES = learnt_features(RandomPatchFeatures, [_PATCHES | one for one in _CELLS], images_a_filter=20)
TANGENTS = Candidates({"NTK": _NTK_DEPTHS}, lambda images: [*map(NTK, _NTK_DEPTHS)])


def table() -> Table:
    """The table of MNIST."""
    filters = {"wavelengths": WAVELENGTHS, "orientations": ORIENTATIONS, "cells": CELLS}
    return Table(
        "mnist",
        (
            Method("myrtle5", "pixels", "myrtle5", ridge=1e-4),
            Method("gaussian", "pixels", GAUSSIANS, ridge=None),
            Method("arc-cosine", "pixels", ARC_COSINES, ridge=None),
            Method("ntk", "pixels", TANGENTS, ridge=None),
            Method("gabor-gaussian", "gabor", GAUSSIANS, ridge=None),
            Method("ckn", "pixels", NETWORKS, ridge=None),
            Method("coates-ng", "pixels", PATCHES, ridge=None),
        ),
        {
            "pixels": Preprocessing(
                "pixels in [0, 1]", lambda data, *_: Standardize([0], [1], 255).fit(data.train.images)
            ),
            "gabor": Preprocessing(
                {"gabor filters": filters},
                lambda _, __, backend: FunctionTransformer(gabor_features, kw_args={"backend": backend}),
            ),
        },
    )
