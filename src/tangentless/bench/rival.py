"""The rival on a GPU: the same graphs in PyTorch, each layer compiled by torch.compile, with norms prepared.

The kernel of a batch of pairs is one tensor (pairs, H, W, H, W), which every layer reads and writes once. Code that
runs layers one by one cannot do less. A layer is a pool, or an embedding together with the windows and sums before it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.cuda.machine import import_cupy
from ..backends.cuda.portable import exact_form
from ..forms import Arc, Exponential, Form, polynomial
from ..graph import EmbedNode, Graph, PoolNode, SumNode, WindowNode
from ..layers import Nonlinearity, Windows
from ..timing import timed

INSTALL = "pip install torch (2.6 or newer, built for CUDA)"
TENSOR_BYTES = 1 << 30  # at most, of the tensor of a batch: larger batches are not faster
TENSORS_AT_ONCE = 8  # tensors of a batch in memory at the same time
SHARE_OF_MEMORY = 1 / 8  # of the GPU, for these tensors: several processes compile at the same time
TURN_BATCHES = 16  # batches of a turn

torch: Any = None
with contextlib.suppress(ImportError):
    torch = importlib.import_module("torch")

Function = Callable[..., Any]


def why_no_rival(graph: Graph) -> str | None:
    """Why PyTorch cannot run a graph here, and what to do about it; None if it can."""
    if torch is None:
        return f"PyTorch is not installed; {INSTALL}"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} sees no GPU; {INSTALL}"
    return why_unsupported(graph)


def why_unsupported(graph: Graph) -> str | None:
    """What in a graph is not implemented in PyTorch; None if all of it is."""
    if graph.tangent:
        return "tangent kernels are not implemented in PyTorch here"
    layers = [node.layer for node in (graph.nodes[place] for place in graph.body) if isinstance(node, EmbedNode)]
    tables = [str(one) for one in layers if isinstance(one, Nonlinearity) and exact_form(one) is None]
    if tables:
        return f"nonlinearities without a closed form are not implemented in PyTorch here: {', '.join(tables)}"
    return None


@dataclass(frozen=True)
class RivalImages:
    """Prepared images: pixels, norms before every embedding, and squared norms at the outputs."""

    images: Any  # (N, H, W, C)
    norms: Mapping[int, Any]  # by node, (2, N, H, W): norms, then inverses
    totals: list[NDArray[np.float64]]  # squared norms by output, (N,)

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class _Layer:
    """Nodes that are computed together: the last of them (`end`), the nodes they read, and the function of them."""

    end: int
    reads: tuple[int, ...]
    plain: Function
    compiled: Function


class Rival:
    """Computes blocks of a kernel with PyTorch."""

    def __init__(self, graph: Graph, precision: str = "float32", device: str = "cuda") -> None:
        # Every shape is one more compilation; beyond the limit, layers would silently run uncompiled. Compilations for
        # earlier graphs are dropped, since PyTorch would check at every call whether one of them fits.
        dynamo: Any = importlib.import_module("torch._dynamo")
        dynamo.config.recompile_limit = 1024
        dynamo.reset()
        # Processes that compile at the same time disturb each other's timings: tuning results are not shared.
        inductor: Any = importlib.import_module("torch._inductor.config")
        inductor.autotune_local_cache = False
        self.graph, self.device = graph, device
        self.dtype = getattr(torch, precision)
        self.batch = _largest_batch(graph, self.dtype.itemsize, device)
        self.layers = _layers(graph)
        # By node: the layer that reads it last.
        self._last = {place: layer.end for layer in self.layers for place in layer.reads}

    def prepare(self, images: NDArray[Any]) -> RivalImages:
        """Compute what depends on each image alone. Not compiled: other numbers of pairs would need compiling again."""
        x = torch.tensor(np.asarray(images, dtype=np.float64)).to(self.device, self.dtype)
        x = x.reshape(len(x), *self.graph.nodes[0].grid, self.graph.channels)
        with torch.inference_mode():
            parts = [self._prepare_batch(some) for some in x.split(max(1, self.batch // 4))]
        norms = {place: torch.cat([part[0][place] for part in parts], 1) for place in parts[0][0]}
        totals = [np.concatenate(some) for some in zip(*(part[1] for part in parts), strict=True)]
        return RivalImages(x, norms, totals)

    def block(self, left: RivalImages, right: RivalImages) -> NDArray[np.float64]:
        """The kernel entries between two prepared sets, (left, right)."""
        pairs = torch.cartesian_prod(torch.arange(len(left)), torch.arange(len(right))).to(self.device)
        with torch.inference_mode():
            batches = [self._pairs(left, right, *some.unbind(1)) for some in pairs.split(self.batch)]
        found = [torch.cat(some).cpu().numpy() for some in zip(*batches, strict=True)]
        values = [some.reshape(len(left), len(right)) for some in found]
        return self.graph.apply_head(values, left.totals, right.totals)

    def gradient(self, left: RivalImages, right: RivalImages, cotangent: NDArray[Any]) -> tuple[Any, Any]:
        """Gradients of the outputs times a cotangent by the pixels of both sides, by autograd.

        Norms count as inputs: gradients by norms are computed too, but not carried on to the pixels.
        """
        sides = [_with_gradients(side) for side in (left, right)]
        pairs = torch.cartesian_prod(torch.arange(len(left)), torch.arange(len(right))).to(self.device)
        by = torch.from_numpy(cotangent.reshape(-1)).to(self.device)
        batch = max(1, self.batch // 4)  # every layer keeps tensors for its backward pass
        for some, weights in zip(pairs.split(batch), by.split(batch), strict=True):
            values = self._pairs(*sides, *some.unbind(1))
            sum((weights * value).sum() for value in values).backward()
        return sides[0].images.grad, sides[1].images.grad

    def _pairs(self, left: RivalImages, right: RivalImages, i: Any, j: Any) -> list[Any]:
        def norms(place: int) -> tuple[Any, Any]:
            return left.norms[place][:, i, :, :, None, None], right.norms[place][:, j, None, None]

        return self._run(_products(left.images[i], right.images[j]), norms, compiled=True)

    def _prepare_batch(self, x: Any) -> tuple[dict[int, Any], list[NDArray[np.float64]]]:
        """`RivalImages.norms` and `totals` of some images, from the kernels of images with themselves."""
        known = {0: (x.double() ** 2).sum(-1).cpu().numpy()}
        found: dict[int, Any] = {}

        def norms(place: int) -> tuple[Any, Any]:
            if place not in found:
                some = np.sqrt(self.graph.squares(known)[place])
                inverses = np.divide(1.0, some, out=np.zeros_like(some), where=some > 0)
                found[place] = torch.from_numpy(np.stack([some, inverses])).to(self.device, self.dtype)
            return found[place][:, :, :, :, None, None], found[place][:, :, None, None]

        def pooled(place: int, value: Any) -> None:
            if isinstance(self.graph.nodes[place], PoolNode):
                known[place] = value.diagonal(0, 1, 3).diagonal(0, 1, 2).double().cpu().numpy()

        self._run(_products(x, x), norms, compiled=False, seen=pooled)
        squares = self.graph.squares(known)
        return found, [squares[place].reshape(-1) for place in self.graph.outputs]

    def _run(
        self, products: Any, norms: Function, *, compiled: bool, seen: Function = lambda place, value: None
    ) -> list[Any]:
        """The values at the outputs, each (pairs,). `seen(node, value)` is called after every layer."""
        found, outputs = {0: products}, self.graph.outputs
        for layer in self.layers:
            node = self.graph.nodes[layer.end]
            sides = norms(node.sources[0]) if isinstance(node, EmbedNode) else ()
            run = layer.compiled if compiled else layer.plain
            found[layer.end] = run([found[place] for place in layer.reads], *sides)
            seen(layer.end, found[layer.end])
            for place in layer.reads:
                if self._last[place] == layer.end and place not in outputs:
                    found.pop(place, None)
        return [found[place].reshape(-1).double() for place in outputs]


class RivalTurns:
    """PyTorch's turns on the first images of both sides: powers of two of them, so that all batches are full."""

    def __init__(self, rival: Rival, first: NDArray[Any], second: NDArray[Any], batches: int = TURN_BATCHES) -> None:
        rows = _power_of_two(min(len(first), math.sqrt(batches * rival.batch)))
        columns = _power_of_two(min(len(second), batches * rival.batch / rows))
        rival.batch = min(rival.batch, rows * columns)
        self.rival = rival
        self.sides = rival.prepare(first[:rows]), rival.prepare(second[:columns])
        self.values: NDArray[np.float64] = np.empty(0)
        self.turn()

    def turn(self) -> float:
        """Run once; returns the seconds. It ends with a copy to the host, so no other synchronisation is needed."""
        self.values, taken = timed(lambda: self.rival.block(*self.sides))
        return float(taken)

    @property
    def part(self) -> tuple[slice, slice]:
        """The rows and columns of the whole block that it computed."""
        rows, columns = map(slice, self.values.shape)
        return rows, columns


def open_rival(
    graph: Graph, precision: str, first: NDArray[Any], second: NDArray[Any]
) -> tuple[RivalTurns | None, str | None]:
    """PyTorch, ready for its turns; or None, and why it is not."""
    missing = why_no_rival(graph)
    if missing is not None:
        return None, missing
    free_memory()
    try:
        return RivalTurns(Rival(graph, precision), first, second), None
    except Exception as error:  # its compiler may fail in any way; ours is measured all the same
        return None, f"PyTorch failed: {type(error).__name__}: {error}"[:500]


def free_memory() -> None:
    """Free the GPU memory that CuPy and PyTorch hold without using it."""
    import_cupy().get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()


def _with_gradients(side: RivalImages) -> RivalImages:
    """Copies of images and norms that collect gradients (leaves of autograd)."""
    norms = {place: some.clone().requires_grad_() for place, some in side.norms.items()}
    return RivalImages(side.images.clone().requires_grad_(), norms, side.totals)


def _largest_batch(graph: Graph, itemsize: int, device: str) -> int:
    """The largest batch of pairs, a power of two.

    It is the same in every process on a machine, so that all of them can use what one has compiled.
    """
    total = torch.cuda.mem_get_info()[1] if device == "cuda" else 1 << 36
    tensor = itemsize * max(math.prod(node.grid) for node in graph.nodes) ** 2
    return _power_of_two(min(TENSOR_BYTES, total * SHARE_OF_MEMORY / TENSORS_AT_ONCE) / tensor)


def _power_of_two(most: float) -> int:
    """The largest power of two that is at most a number, but at least 1."""
    return 1 << max(0, math.floor(math.log2(most)))


def _layers(graph: Graph) -> list[_Layer]:
    """The layers of a graph. A window or sum that only one node reads belongs to that node's layer."""
    reads = [source for place in graph.body for source in graph.nodes[place].sources]
    inside = {
        place
        for place in graph.body
        if isinstance(graph.nodes[place], WindowNode | SumNode)
        and place not in graph.outputs
        and reads.count(place) == 1
    }
    return [_layer(graph, end, inside) for end in graph.body if end and end not in inside]


def _layer(graph: Graph, end: int, inside: set[int]) -> _Layer:
    reads: list[int] = []
    function = _layer_function(graph, end, inside, reads)

    def plain(*arguments: Any) -> Any:  # torch.compile does not take functools.partial objects
        return function(*arguments)

    return _Layer(end, tuple(reads), plain, torch.compile(plain, dynamic=False))


def _layer_function(graph: Graph, place: int, inside: set[int], reads: list[int]) -> Function:
    """The function that computes a node from a list of values and, if it embeds, the norms of both sides.

    The nodes whose values it needs are appended to `reads`, in the order of that list.
    """
    node = graph.nodes[place]
    sources: list[Function] = []
    for source in node.sources:
        if source in inside:
            sources.append(_layer_function(graph, source, inside, reads))
        else:
            if source not in reads:
                reads.append(source)
            sources.append(functools.partial(_value, reads.index(source)))
    if isinstance(node, SumNode):
        return functools.partial(_sum, tuple(sources), node.weights)
    (before,) = sources
    grid = graph.nodes[node.sources[0]].grid
    if isinstance(node, WindowNode):
        return functools.partial(_windows, before, _shifts(node.axes, grid), node.scale)
    if isinstance(node, PoolNode):
        return _pool_function(before, node, grid)
    assert isinstance(node, EmbedNode), node
    if isinstance(node.layer, Nonlinearity):
        return functools.partial(_embed, before, _dual(exact_form(node.layer)))
    return functools.partial(_normalize, before)


def _pool_function(before: Function, node: PoolNode, grid: tuple[int, int]) -> Function:
    if all(windows.count == 1 and windows.size == length for windows, length in zip(node.axes, grid, strict=True)):
        return functools.partial(_global_pool, before)
    if all(windows.count * windows.size == length for windows, length in zip(node.axes, grid, strict=True)):
        tiles = [number for windows in node.axes for number in (windows.count, windows.size)]
        return functools.partial(_disjoint_pool, before, (-1, *tiles, *tiles))
    axes = zip((1, 2, 3, 4), node.axes * 2, strict=True)
    moves = tuple((axis, _parts(windows, 0)) for axis, windows in axes if windows.size > 1 or windows.stride > 1)
    return functools.partial(_pool, before, moves, node.scale)


def _shifts(axes: tuple[Windows, Windows], grid: tuple[int, int]) -> tuple[tuple[int, list[int], list[slice]], ...]:
    """How to compute windows, for rows and for columns: (axis of x, padding of all axes, slices of the positions).

    Axes whose windows hold one position, without stride or padding, are left out.
    """
    found = []
    for axis, windows, length in zip((1, 2), axes, grid, strict=True):
        if windows != Windows(1, length):
            before = max(0, -windows.start)
            after = max(0, windows.positions(windows.count - 1)[-1] - length + 1)
            padding = [0, 0, before, after] * 2 if axis == 1 else [before, after, 0, 0] * 2  # the last axis first
            found.append((axis, padding, _parts(windows, before)))
    return tuple(found)


def _parts(windows: Windows, padding: int) -> list[slice]:
    """One slice for every place within a window: the positions at this place of all windows along an axis."""
    reach = (windows.count - 1) * windows.stride + 1
    starts = [position + padding for position in windows.positions(0)]
    return [slice(start, start + reach, windows.stride) for start in starts]


def _dual(form: Form | None) -> Function:
    if isinstance(form, Arc):
        return _relu if form == Arc() else functools.partial(_arc, form.linear, form.arc)
    if isinstance(form, Exponential):
        return functools.partial(_exponential, form.gamma)
    assert form is not None
    return functools.partial(polynomial, form.coefficients)


def _products(x: Any, z: Any) -> Any:
    return torch.einsum("pjkc,pmnc->pjkmn", x, z)


def _value(number: int, values: list[Any]) -> Any:
    return values[number]


def _sum(sources: tuple[Function, ...], weights: tuple[float, ...], values: list[Any]) -> Any:
    return sum(weight * source(values) for source, weight in zip(sources, weights, strict=True))


def _windows(before: Function, shifts: Any, scale: float, values: list[Any]) -> Any:
    """Sum over windows: shifts along the rows of both images, then along their columns."""
    kernels = before(values)
    for axis, padding, parts in shifts:
        padded = torch.nn.functional.pad(kernels, padding)
        kernels = sum(_along(_along(padded, axis, part), axis + 2, part) for part in parts)
    return kernels if scale == 1.0 else kernels * scale


def _along(values: Any, axis: int, part: slice) -> Any:
    return values[(slice(None),) * axis + (part,)]


def _pool(before: Function, moves: Any, scale: float, values: list[Any]) -> Any:
    kernels = before(values)
    for axis, parts in moves:
        kernels = sum(_along(kernels, axis, part) for part in parts)
    return kernels * scale


def _disjoint_pool(before: Function, tiles: tuple[int, ...], values: list[Any]) -> Any:
    return before(values).view(tiles).mean(dim=(2, 4, 6, 8))


def _global_pool(before: Function, values: list[Any]) -> Any:
    return before(values).mean(dim=(1, 2, 3, 4), keepdim=True, dtype=torch.float64)


def _embed(before: Function, dual: Function, values: list[Any], left: Any, right: Any) -> Any:
    """`left` and `right` hold norms and their inverses."""
    return dual(_normalize(before, values, left, right)) * (left[0] * right[0])


def _normalize(before: Function, values: list[Any], left: Any, right: Any) -> Any:
    return (before(values) * (left[1] * right[1])).clamp(-1, 1)


def _relu(cosine: Any) -> Any:
    return (torch.sqrt(1 - cosine * cosine) + cosine * (torch.pi - torch.acos(cosine))) / torch.pi


def _arc(linear: float, arc: float, cosine: Any) -> Any:
    return linear * cosine + arc * _relu(cosine)


def _exponential(gamma: float, cosine: Any) -> Any:
    return torch.exp(gamma * (cosine - 1))
