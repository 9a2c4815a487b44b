"""Kernels and tangent kernels of graphs from their definitions, in plain NumPy on dense arrays.

K[i, j, p, q] is the inner product of image i at position p and image j at position q. Every linear layer is a list
of 0/1 matrices S, one for each place in its window, which select the input position of every output position.
A window adds: K' = sum of S K S^T. A pool averages: K' = M K M^T, M the mean of S. Tangents T go the same way.

A layer of weights adds K to T. There is one wherever features become pre-activations: before a nonlinearity, and
after windows that enter a sum or end one of its branches. A sum of pre-activations is one itself.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
from graph_text import Sum, parse


@dataclass(frozen=True)
class Value:
    """What flows through a graph; `state` is "features", "windows" (features not yet weighted) or "weighted"."""

    kernel: np.ndarray
    tangent: np.ndarray
    grid: tuple[int, ...]
    state: str

    def map(self, function, **changes):
        """Apply one linear map to kernel and tangent."""
        return replace(self, kernel=function(self.kernel), tangent=function(self.tangent), **changes)

    def weighted(self):
        """Put a layer of weights on top, unless there is one."""
        if self.state == "weighted":
            return self
        return replace(self, tangent=self.tangent + self.kernel, state="weighted")


def kernel_and_tangent(text, images):
    """Return K and T of a text form, (N, N) each; T has a trained readout on top."""
    count, grid = len(images), images.shape[1:-1]
    flat = images.reshape(count, -1, images.shape[-1])
    kernel = np.einsum("ipc,jqc->ijpq", flat, flat)
    value = run(parse(text), Value(kernel, np.zeros_like(kernel), grid, "features"), inside=False)
    if value.kernel.shape[2:] != (1, 1):
        raise ValueError(f"{text} leaves a grid of {value.grid}")
    kernel, tangent = value.kernel[:, :, 0, 0], value.tangent[:, :, 0, 0]
    return kernel, tangent + kernel


def run(nodes, value, inside):
    """Apply layers one after another; `inside` says whether a sum is around them."""
    for node in nodes:
        if isinstance(node, Sum):
            value = add(node, value)
        elif node.name in ("conv", "patch"):
            value = window(node, value, inside)
        elif node.name in ("pool", "globalpool"):
            value = pool(node, value)
        elif node.name == "normalize":
            value = normalize(value)
        else:
            value = embed(node, value)
    return value


def add(node, value):
    """Add up weighted branches: pre-activations if all of them are, otherwise features side by side."""
    entrance = value.weighted() if value.state == "windows" else value
    ends = [run(branch, entrance, inside=True) for branch in node.branches]
    ends = [end.weighted() if end.state == "windows" else end for end in ends]
    if any(end.grid != ends[0].grid for end in ends):
        raise ValueError("the branches of a sum must leave one grid")
    state = "weighted" if all(end.state == "weighted" for end in ends) else "features"
    kernel = sum(weight * end.kernel for weight, end in zip(node.weights, ends, strict=True))
    tangent = sum(weight * end.tangent for weight, end in zip(node.weights, ends, strict=True))
    return Value(kernel, tangent, ends[0].grid, state)


def window(node, value, inside):
    """Stack the features of windows: sums outside of a sum, means inside."""
    if node.name == "patch":
        places, grid = selections(value.grid, node.size, node.size, 1, 0)
    else:
        places, grid = selections(value.grid, node.size, node.stride or 1, node.dilation, node.size // 2)
    share = 1 / len(places) if inside else 1.0
    return value.map(lambda array: share * sum(S @ array @ S.T for S in places), grid=grid, state="windows")


def pool(node, value):
    """Average features over windows that lie inside the grid."""
    if node.name == "globalpool":
        mean = np.full((1, np.prod(value.grid)), 1 / np.prod(value.grid))
        return value.map(lambda array: mean @ array @ mean.T, grid=(1,) * len(value.grid))
    places, grid = selections(value.grid, node.size, node.stride or node.size, 1, 0)
    mean = sum(places) / len(places)
    return value.map(lambda array: mean @ array @ mean.T, grid=grid)


def selections(grid, size, stride, dilation, reach):
    """Return the selection matrices of a window, and the new grid.

    A window starts `reach` taps before its position. Without a reach it must lie inside the grid.
    """
    if reach:
        new = tuple(-(-length // stride) for length in grid)
    else:
        new = tuple((length - size) // stride + 1 for length in grid)
    places = []
    for taps in np.ndindex(*(size,) * len(grid)):
        axes = []
        for length, count, tap in zip(grid, new, taps, strict=True):
            matrix = np.zeros((count, length))
            for position in range(count):
                source = position * stride + (tap - reach) * dilation
                if 0 <= source < length:
                    matrix[position, source] = 1.0
            axes.append(matrix)
        places.append(functools.reduce(np.kron, axes))
    return places, new


def scales(kernel):
    """Return the products of norms, |x_ip| |x_jq|."""
    norms = np.sqrt(np.einsum("iipp->ip", kernel))
    return np.einsum("ip,jq->ijpq", norms, norms)


def normalize(value):
    """Divide features by their norms, which no weight of a wide network moves."""
    scale = scales(value.kernel)
    return value.map(lambda array: array / scale)


def embed(node, value):
    """Apply a nonlinearity, K' = |x| |z| f(c) and T' = T f'(c), to pre-activations."""
    value, scale = value.weighted(), scales(value.kernel)
    cosines = np.clip(value.kernel / scale, -1.0, 1.0)
    np.einsum("iipp->ip", cosines)[:] = 1.0  # rounding there would be its square root in f'
    dual, slope = duals(node, cosines)
    return Value(scale * dual, slope * value.tangent, value.grid, "features")


def duals(node, cosines):
    """Return f(c) and f'(c)."""
    if node.name == "gaussian":
        gamma = 1.0 if node.parameter is None else node.parameter
        dual = np.exp(gamma * (cosines - 1))
        return dual, gamma * dual
    low = {"relu": 0.0, "leakyrelu": node.parameter}[node.name]
    angles = np.arccos(cosines)
    share, total = (1 - low) ** 2 / np.pi, 1 + low**2  # of max(x, low x)
    slope = (2 * low + share * (np.pi - angles)) / total
    return slope * cosines + share * np.sin(angles) / total, slope
