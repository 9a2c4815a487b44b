"""Real parameters of a kernel, such as gamma, improved by the gradient of leave-one-out or of the marginal likelihood.

With Q = (K + ridge I)^-1, the gradient of the criterion by K takes a few products with Q, and `Kernel.vjp` pulls it
back to all parameters at once. An evaluation costs a matrix and its gradient, for any number of parameters; the cost of
a grid search is exponential in that number. The ridge is improved too. L-BFGS works on logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.optimize import minimize

from .architecture import Architecture
from .classical import ConvolutionalNTK
from .classical.slopes import DifferentiableVectors
from .devices import Device
from .errors import ArchitectureError, ParameterError
from .inputs import to_host
from .kernel import CompositionalKernel, Kernel, Product, Scaled, Sum, Symmetrized, Viewed
from .layers import Layer, Nonlinearity, Residual, check_dual, walk
from .layers import Sum as SumLayer

Array = NDArray[np.float64]
Refinement = Literal["squared error", "marginal likelihood"]
Change = Callable[[str, float], float]  # the new value of a parameter, from its name and its value
_FARTHEST = 1e3  # the largest factor by which a parameter or the ridge may grow or shrink
_HALVINGS = 10  # of the range in which a bound lies
_SMALLEST_RIDGE = 1e-10  # relative to the mean of the diagonal
_FAILED = 1e6  # the criterion where the matrix is not positive definite


def refine(
    kernel: Kernel, X: Any, Y: Array, ridge: float, criterion: Refinement, evaluations: int, device: Device
) -> Kernel:
    """The kernel with better parameters, after at most `evaluations` evaluations of the criterion and its gradient.

    `Y` holds targets (n, columns). Parameters that are zero, or that have no gradient, keep their values.

    >>> from tangentless.classical import Gaussian
    >>> X = np.random.default_rng(0).standard_normal((40, 2))
    >>> refine(Gaussian(9.0), X, np.sin(X[:, :1]), 1e-3, "squared error", 20, Device("cpu")).gamma < 1
    True
    """
    start = {name: value for name, value in parameters_of(kernel).items() if value > 0}
    if not start:
        return kernel
    X = X if X.dtype.kind == "f" else X.astype(np.float64)  # integers have no gradient
    least_ridge = _SMALLEST_RIDGE * float(np.mean(to_host(kernel.diag(X, backend=device))))
    first = np.array([*start.values(), max(ridge, least_ridge)])

    def changed(logarithms: Array) -> Kernel:
        return with_parameters(kernel, dict(zip(start, (first * np.exp(logarithms)).tolist(), strict=False)))

    def evaluate(logarithms: Array) -> tuple[float, Array]:
        """The criterion and its gradient, by the logarithms of the factors by which parameters and ridge change."""
        values, failed = first * np.exp(logarithms), (_FAILED, np.zeros_like(logarithms))
        try:
            made = changed(logarithms)
            K = np.asarray(to_host(made.on_device(device, X)))
            if (scored := score(criterion, K, Y, float(values[-1]))) is None:
                return failed
            value, by_K = scored
            *_, slopes = made.vjp(X, None, by_K, parameters=True, backend=device)
        except (ArchitectureError, ParameterError):  # parameters that a layer allows alone, but not together
            if not logarithms.any():
                raise
            return failed
        return value, values * np.array([*(slopes[name] for name in start), np.trace(by_K)])

    bounds = [_bounds(kernel, name, value) for name, value in start.items()]
    bounds.append((-math.log(_FARTHEST), math.log(_FARTHEST)))
    options = {"maxfun": evaluations}
    found = minimize(evaluate, np.zeros(len(first)), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return changed(found.x)


def parameters_of(kernel: Kernel) -> dict[str, float]:
    """The real parameters of a kernel that have gradients, by the names that `Kernel.vjp` gives them.

    >>> from tangentless.kernel import kernel
    >>> parameters_of(0.5 * kernel("conv3 gaussian(0.7) globalpool"))
    {'factor': 0.5, 'base.1.gaussian.gamma': 0.7}
    """
    found: dict[str, float] = {}
    if not all(_has_slopes(leaf.core) for leaf in kernel.leaves()):
        return found

    def note(name: str, value: float) -> float:
        found[name] = value
        return value

    _map_parameters(kernel, note)
    return found


def _has_slopes(kernel: Kernel) -> bool:
    """Whether a kernel has gradients by parameters."""
    if isinstance(kernel, ConvolutionalNTK) or type(kernel).gradient is Kernel.gradient:
        return False
    try:
        for layer in _nonlinearities(kernel):
            layer.derivative(np.zeros(1))
    except ArchitectureError:
        return False
    return True


def _nonlinearities(kernel: Kernel) -> Iterator[Nonlinearity]:
    for leaf in kernel.leaves():
        if isinstance(leaf.core, CompositionalKernel):
            yield from (layer for layer in walk(leaf.core.architecture.layers) if isinstance(layer, Nonlinearity))


def with_parameters(kernel: Kernel, values: dict[str, float]) -> Kernel:
    """The kernel with new values of some parameters.

    >>> from tangentless.kernel import kernel
    >>> with_parameters(kernel("conv3 gaussian globalpool"), {"1.gaussian.gamma": 2.0})
    kernel('conv3 gaussian(2) globalpool')
    """
    return _map_parameters(kernel, lambda name, value: values.get(name, value))


def _map_parameters(kernel: Kernel, change: Change, prefix: str = "") -> Kernel:
    """The same kernel with every parameter replaced by `change(name, value)`."""
    if isinstance(kernel, Scaled):
        factor = change(f"{prefix}factor", kernel.factor)
        return Scaled(factor, _map_parameters(kernel.base, change, f"{prefix}base."))
    if isinstance(kernel, Viewed):
        return _map_parameters(kernel.base, change, f"{prefix}base.").seen(kernel.view)
    if isinstance(kernel, Symmetrized):
        return replace(kernel, base=_map_parameters(kernel.base, change, f"{prefix}base."))
    if isinstance(kernel, Sum | Product):
        parts = (_map_parameters(getattr(kernel, name), change, f"{prefix}{name}.") for name in ("first", "second"))
        return type(kernel)(*parts)
    if isinstance(kernel, CompositionalKernel):
        layers = _map_layers(kernel.architecture.layers, change, prefix, itertools.count())
        return replace(kernel, architecture=Architecture.of(layers))
    if isinstance(kernel, DifferentiableVectors):
        changes = {name: change(f"{prefix}{name}", getattr(kernel, name)) for name in kernel.parameters}
        return replace(kernel, **changes) if changes else kernel  # type: ignore[type-var]  # they are dataclasses
    return kernel


def _map_layers(layers: tuple[Layer, ...], change: Change, prefix: str, numbers: Iterator[int]) -> tuple[Layer, ...]:
    """The layers with changed parameters; layers are numbered in order, those in branches after their sum."""
    found: list[Layer] = []
    for layer in layers:
        name = f"{prefix}{next(numbers)}.{layer.name}"
        if isinstance(layer, Nonlinearity):
            changes = {one: change(f"{name}.{one}", getattr(layer, one)) for one in layer.parameters}
            found.append(replace(layer, **changes) if changes else layer)
        elif isinstance(layer, SumLayer):
            weights = tuple(change(f"{name}.weights[{i}]", weight) for i, weight in enumerate(layer.weights))
            branches = tuple(_map_layers(branch, change, prefix, numbers) for branch in layer.branches)
            found.append(replace(layer, branches=branches, weights=weights))
        elif isinstance(layer, Residual):
            found.append(replace(layer, layers=_map_layers(layer.layers, change, prefix, numbers)))
        else:
            found.append(layer)
    return tuple(found)


def _bounds(kernel: Kernel, name: str, value: float) -> tuple[float, float]:
    """Bounds on the logarithm of a parameter's factor: that of _FARTHEST, or less if its layer refuses such values."""

    def reach(sign: int) -> float:
        allowed, refused = 0.0, math.log(_FARTHEST)
        if _allowed(kernel, name, value * math.exp(sign * refused)):
            return refused
        for _ in range(_HALVINGS):
            middle = (allowed + refused) / 2
            if _allowed(kernel, name, value * math.exp(sign * middle)):
                allowed = middle
            else:
                refused = middle
        return allowed * (1 - 1e-9)  # rounding must not lead beyond

    return -reach(-1), reach(1)


def _allowed(kernel: Kernel, name: str, value: float) -> bool:
    """Whether the kernel and its gradient can be computed with this value of a parameter."""
    try:
        for layer in _nonlinearities(with_parameters(kernel, {name: value})):
            check_dual(layer)
            for one in layer.parameters:
                layer.parameter_slope(one, np.ones(1))
    except (ArchitectureError, ParameterError):
        return False
    return True


def score(criterion: Refinement, K: Array, Y: Array, ridge: float) -> tuple[float, Array] | None:
    """The criterion (smaller is better) and its gradient by K; None if K + ridge I is not positive definite."""
    try:
        factor = scipy.linalg.cho_factor(K + ridge * np.eye(len(K)), lower=True)
    except np.linalg.LinAlgError:
        return None
    inverse: Array = scipy.linalg.cho_solve(factor, np.eye(len(K)))
    return SCORES[criterion]((inverse + inverse.T) / 2, Y)


def left_out_error(inverse: Array, Y: Array) -> tuple[float, Array]:
    """The logarithm of the mean squared leave-one-out error, and its gradient by K, from Q = `inverse`.

    With a = Q Y and q the diagonal of Q, the leave-one-out errors are a / q.
    """
    q, coefficients = np.diagonal(inverse)[:, None], inverse @ Y
    misses = coefficients / q
    total = float((misses**2).sum())
    by_coefficients = 2.0 * misses / (q * total)
    by_q = (by_coefficients * misses).sum(axis=1)
    by_K = inverse * by_q @ inverse - (inverse @ by_coefficients) @ coefficients.T
    return math.log(total / Y.size), (by_K + by_K.T) / 2


def unlikelihood(inverse: Array, Y: Array) -> tuple[float, Array]:
    """Minus the log marginal likelihood per number in Y, each column at its best scale, and its gradient by K."""
    coefficients = inverse @ Y
    scales = (Y * coefficients).sum(axis=0) / len(Y)
    _, log_determinant = np.linalg.slogdet(inverse)
    value = 0.5 * (np.log(2 * math.pi * scales).mean() + 1 - log_determinant / len(Y))
    by_K = 0.5 * (inverse / len(Y) - (coefficients / scales) @ coefficients.T / Y.size)
    return float(value), by_K


SCORES = {"squared error": left_out_error, "marginal likelihood": unlikelihood}
