"""Nonlinearities whose dual functions run on CuPy arrays.

Dual functions may be written by users, with NumPy or SciPy. One with an exact closed form (`forms.py`) is computed from
that form, on arrays of any module. Any other is computed from a table with float64 precision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import BackendError
from ...forms import Arc, Exponential, Form, Series, from_table, tabulate
from ...graph import EmbedNode, Graph
from ...layers import Nonlinearity

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class _Portable(Nonlinearity):
    """A nonlinearity whose dual and derivatives run on CuPy arrays."""

    layer: Nonlinearity
    functions: tuple[Function, ...] = field(compare=False)  # f, and f' and f'' if needed
    upload: Function = field(compare=False)
    name: ClassVar[str] = "portable"

    def activation(self, preactivation: Any) -> Any:
        return self.layer.activation(preactivation)

    def dual(self, cosine: Any) -> Any:
        return self.functions[0](cosine)

    def derivative(self, cosine: Any) -> Any:
        return self.functions[1](cosine)

    def curvature(self, cosine: Any) -> Any:
        return self.functions[2](cosine)

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.layer.parameters

    def parameter_slope(self, name: str, cosine: Any) -> Any:
        return from_table(self.upload(table_of(self.layer, "parameter_slope", name)), cosine)

    def gain(self) -> float:
        return self.layer.gain()

    def gain_slope(self, name: str) -> float:
        return self.layer.gain_slope(name)


def make_portable(graph: Graph, places: Iterable[int], upload: Function, *, gradient: bool = False) -> Graph:
    """The graph with nonlinearities that run on a GPU at the given nodes; `upload` copies an array to the GPU.

    `gradient`: with the derivatives that gradients need.
    """
    nodes = list(graph.nodes)
    derivatives = graph.tangent + gradient
    for place in places:
        node = nodes[place]
        if isinstance(node, EmbedNode) and isinstance(node.layer, Nonlinearity):
            nodes[place] = replace(node, layer=_portable(node.layer, derivatives, upload))
    return replace(graph, nodes=tuple(nodes))


def _portable(layer: Nonlinearity, derivatives: int, upload: Function) -> _Portable:
    form, functions = exact_form(layer), ("dual", "derivative", "curvature")[: 1 + derivatives]
    if form is not None:
        return _Portable(layer, (form.value, form.derivative, form.curvature), upload)
    tables = [upload(table_of(layer, what)) for what in functions]
    return _Portable(layer, tuple(functools.partial(from_table, table) for table in tables), upload)


def exact_form(layer: Nonlinearity) -> Form | None:
    """The closed form of a nonlinearity, if it is exact; None if it is a fit, or there is none."""
    form, series = layer.form(), layer.series()
    if isinstance(form, Arc | Exponential):
        return form
    return None if series is None else Series(series)


@functools.lru_cache(maxsize=64)
def table_of(layer: Nonlinearity, what: str, *arguments: str) -> NDArray[np.float64]:
    """A table (`forms.tabulate`) of a method of a nonlinearity, such as "dual", as a function of the cosine.

    `arguments` are those of the method before the cosine.
    """
    table = tabulate(functools.partial(getattr(layer, what), *arguments))
    if table is None:
        raise BackendError(
            f"the {what} of {layer} is not smooth between -1 and 1, as it must be for an activation, and cannot be "
            f"tabulated for the GPU; check its {what}(), or use backend='cpu'"
        )
    return table
