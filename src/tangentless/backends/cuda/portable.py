"""Nonlinearities that run on a GPU, whatever their dual function is written with.

Dual functions are the users' own and may need NumPy or SciPy. Those with an exact closed form are computed from it, on
arrays of any module; all others from a table of float64 precision.
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
    """A nonlinearity whose dual and derivatives run on arrays of the machine."""

    layer: Nonlinearity
    functions: tuple[Function, ...] = field(compare=False)  # f, and as many of f' and f'' as are needed
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


def make_portable(graph: Graph, places: Iterable[int], upload: Function, *, gradient: bool = False) -> Graph:
    """The same graph, with nonlinearities at these nodes that run on a GPU; `upload` copies an array there."""
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
    """The closed form of a nonlinearity, unless it is a fit."""
    form, series = layer.form(), layer.series()
    if isinstance(form, Arc | Exponential):
        return form
    return None if series is None else Series(series)


@functools.lru_cache(maxsize=64)
def table_of(layer: Nonlinearity, what: str, *arguments: str) -> NDArray[np.float64]:
    """The table of a nonlinearity's "dual" or "derivative", or of what another of its methods gives for a cosine."""
    table = tabulate(functools.partial(getattr(layer, what), *arguments))
    if table is None:
        raise BackendError(
            f"the {what} of {layer} is not smooth between -1 and 1, as that of an activation would be, so the GPU has "
            f"no table of it; check its {what}(), or use backend='cpu'"
        )
    return table
