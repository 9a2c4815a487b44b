"""Explicit SIMD for numba: a vector type, its arithmetic, and tags that choose the machine code.

Vector code is compiled once per *tag*: a Python object whose numba type carries the lanes and the element type, or the
kind of an embedding, and no run-time data. Tags are part of the name of compiled code on disk; they hold a digest of
the sources, so that code of another version is never picked up.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from filelock import FileLock
from llvmlite import ir
from numba import cfunc, njit, typeof, types
from numba.core import cgutils
from numba.core.imputils import lower_constant
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import NativeValue, intrinsic, lower_builtin, models, register_model, typeof_impl, unbox

from .compiling import announce_no_cache

_ELEMENTS = {
    "float32": (types.float32, ir.FloatType(), ir.IntType(32)),
    "float64": (types.float64, ir.DoubleType(), ir.IntType(64)),
}
CONTRACT = ("contract",)  # LLVM may fuse a product and a sum, without rounding the product
_DIGEST = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()[:16]


Leaf = Callable[[int], None]  # of the address of a frame
_OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}


def compiled(function: Callable[..., Any], inline: bool = False) -> Callable[..., Any]:
    """Compile without the interpreter lock, with disk cache where there is a folder to write to."""
    options = {**_OPTIONS, "inline": "always" if inline else "never"}
    try:
        return one_at_a_time(njit(cache=True, **options)(function))
    except (RuntimeError, AttributeError):  # no cache folder to write to, or numba has no such file: compile every time
        announce_no_cache()
        return njit(**options)(function)  # type: ignore[no-any-return]


def one_at_a_time(dispatcher: Any) -> Callable[..., Any]:
    """Let only one process at a time write to a function's cache on disk.

    A function has a file for each signature. Numba numbers these files without a lock, so two processes may give one
    number to two signatures, and a later process would load the wrong code.
    """
    file = dispatcher._cache._cache_file
    path, save = f"{file._index_path}.lock", file.save

    def save_alone(key: Any, data: Any) -> None:
        with FileLock(path):
            save(key, data)

    file.save = save_alone
    return dispatcher  # type: ignore[no-any-return]


inlined = functools.partial(compiled, inline=True)


def internal(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that only compiled code calls: it is cached with its callers, and Python cannot call it.

    Wrappers for Python and a cache file of its own took a third of the time that LLVM needs for the driver.
    """
    without = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(**_OPTIONS, **without)(function)  # type: ignore[no-any-return]


def must_compile(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a function must be compiled for such arguments, and its cache on disk could keep the code."""
    signature = tuple(map(typeof, arguments))
    if function._cache.cache_path is None or signature in function.overloads:
        return False
    return function._cache.load_overload(signature, function.targetctx) is None


@functools.cache
def leaf(make: Callable[..., Leaf], *choices: Any) -> Any:
    """The function that `make(*choices)` gives, compiled alone, to be called by its `address` with one integer.

    Numba compiles a function together with all it calls, again for every caller. A leaf is compiled once. Its name
    contains a digest of its choices, so that it has a cache file of its own: in a common file, two processes that
    compile different leaves at the same time may load each other's.
    """
    signature, options = types.void(types.intp), {"boundscheck": False, "error_model": "numpy"}
    options["_nrt"] = False  # no reference counting: 7 % less to compile
    function = make(*choices)
    digest = hashlib.sha256(repr((choices, llvm.get_host_cpu_name(), sorted(host_features()))).encode()).hexdigest()
    function.__name__ = function.__qualname__ = f"{make.__name__}_{digest[:16]}"
    try:
        return cfunc(signature, cache=True, **options)(function)
    except RuntimeError:  # no writable cache folder: compile in every process
        announce_no_cache()
        return cfunc(signature, **options)(function)


@functools.cache
def host_features() -> frozenset[str]:
    """The instruction sets numba will compile for: those of this processor, unless its variables say otherwise."""
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    if chosen is not None:
        return frozenset(word[1:] for word in chosen.split(",") if word.startswith("+"))
    try:
        return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
    except RuntimeError:  # LLVM cannot tell on every system, such as macOS on ARM, where vectors have 128 bits
        return frozenset()


def host_bits() -> int:
    """The width of this processor's vectors in bits: 512 (AVX-512), 256 (AVX2) or 128."""
    features = host_features()
    return 512 if "avx512f" in features else 256 if {"avx2", "fma"} <= features else 128


def host_lanes(dtype: str) -> int:
    """The width of this processor's vectors in elements."""
    return host_bits() // (32 if dtype == "float32" else 64)


@functools.cache
def quick_roots() -> bool:
    """Whether square roots run beside multiplications, and nearly as fast, as on AMD's processors with AVX-512."""
    return (os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()).startswith("znver")


class VectorType(types.Type):
    """The numba type of a vector register."""

    def __init__(self, dtype: str, lanes: int) -> None:
        self.dtype, self.lanes = dtype, lanes
        super().__init__(name=f"Vector({dtype}x{lanes})")

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(_ELEMENTS[self.dtype][1], self.lanes)

    @property
    def itemsize(self) -> int:
        return int(self.dtype[5:]) // 8

    @property
    def llvm_integers(self) -> ir.VectorType:
        return ir.VectorType(_ELEMENTS[self.dtype][2], self.lanes)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, front_end_type: VectorType) -> None:
        super().__init__(manager, front_end_type, front_end_type.llvm)


@dataclass(frozen=True)
class Tag:
    """A compile-time choice: its numba type carries the key, and at run time it holds nothing."""

    key: tuple[Any, ...]
    digest: str = _DIGEST  # part of the name of compiled code on disk


class TagType(types.Opaque):
    """The numba type of a tag."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.choices = key
        super().__init__(name=f"Tag({key!r}, {_DIGEST})")  # functions that take a tag are cached by its name


register_model(TagType)(models.OpaqueModel)


@typeof_impl.register(Tag)
def _typeof_tag(tag: Tag, context: Any) -> TagType:
    return TagType(tag.key)


@lower_constant(TagType)
def _constant_tag(context: Any, builder: Any, tag_type: TagType, value: Any) -> Any:
    return context.get_dummy_value()


@unbox(TagType)
def _unbox_tag(tag_type: TagType, value: Any, context: Any) -> NativeValue:
    return NativeValue(context.context.get_dummy_value())


def lanes_tag(dtype: str, lanes: int, paired: bool) -> Tag:
    """The tag of vectors: element type and lanes, and how left images are read.

    All lanes have the value of one left image or, `paired`, each has that of its own: images against themselves.
    """
    return Tag(("lanes", dtype, lanes, paired))


def _vector_type(tag: TagType) -> VectorType:
    _, dtype, lanes, _ = tag.choices
    return VectorType(dtype, lanes)


def splat(builder: ir.IRBuilder, vector: VectorType, scalar: ir.Value) -> ir.Value:
    """A vector with the scalar in every lane."""
    undefined = ir.Constant(vector.llvm, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), [0] * vector.lanes)
    return builder.shuffle_vector(first, undefined, mask)


def constant(vector: VectorType, value: float) -> ir.Constant:
    """A vector constant."""
    return ir.Constant(vector.llvm, [value] * vector.lanes)


def call(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic."""
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


def suffix(vector: VectorType) -> str:
    """The ending of LLVM's vector intrinsics, such as v16f32."""
    return f"v{vector.lanes}f{vector.dtype[5:]}"


def element(builder: ir.IRBuilder, dtype: str, address: ir.Value, index: ir.Value) -> ir.Value:
    """A pointer to an element of the array at an address."""
    return builder.gep(builder.inttoptr(address, _ELEMENTS[dtype][1].as_pointer()), [index])


def _lanes_pointer(builder: ir.IRBuilder, vector: VectorType, address: ir.Value, index: ir.Value) -> ir.Value:
    return builder.bitcast(element(builder, vector.dtype, address, index), vector.llvm.as_pointer())


def load_lanes(builder: ir.IRBuilder, vector: VectorType, address: ir.Value, index: ir.Value) -> ir.Value:
    """A vector of elements [index, index + lanes)."""
    loaded = builder.load(_lanes_pointer(builder, vector, address, index))
    loaded.align = vector.itemsize
    return loaded


def _broadcast(builder: ir.IRBuilder, vector: VectorType, address: ir.Value, index: ir.Value) -> ir.Value:
    return splat(builder, vector, builder.load(element(builder, vector.dtype, address, index)))


def load_value(builder: ir.IRBuilder, tag: TagType, address: ir.Value, index: ir.Value) -> ir.Value:
    """A value of the left image in every lane or, where images are paired, of each lane's own left image."""
    vector = _vector_type(tag)
    if tag.choices[3]:
        start = builder.mul(index, ir.Constant(index.type, vector.lanes))
        return load_lanes(builder, vector, address, start)
    return _broadcast(builder, vector, address, index)


def _integer(builder: ir.IRBuilder, address: ir.Value, index: ir.Value) -> ir.Value:
    loaded = builder.load(builder.gep(builder.inttoptr(address, ir.IntType(64).as_pointer()), [index]))
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


@intrinsic
def integer(typing: Any, address: Any, index: Any) -> Any:
    """An entry of a table of integers, which must not change while a function runs that reads it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _integer(builder, arguments[0], arguments[1])

    return types.int64(types.intp, types.intp), generate


def reader(columns: int) -> Any:
    """A compiled function (address, row, column) that reads a table of integers with so many columns."""

    @intrinsic
    def read(typing: Any, address: Any, row: Any, column: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = builder.mul(arguments[1], ir.Constant(ir.IntType(64), columns))
            return _integer(builder, arguments[0], builder.add(start, arguments[2]))

        return types.int64(types.intp, types.intp, types.intp), generate

    return read


@intrinsic
def put(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """Write an entry of a table of integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[2], builder.gep(pointer, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def call_address(typing: Any, address: Any, argument: Any) -> Any:
    """Call the machine code at an address with one integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [ir.IntType(64)]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def lane_count(typing: Any, tag: Any) -> Any:
    """The lanes of a vector, a constant of the machine code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.IntType(64), tag.choices[2])

    return types.int64(tag), generate


@intrinsic
def is_paired(typing: Any, tag: Any) -> Any:
    """Whether left images are paired with lanes, a constant of the machine code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(tag.choices[3]))

    return types.boolean(tag), generate


def _loader(load_vector: Callable[..., ir.Value]) -> Any:
    """A compiled function (tag, address, index) that loads a vector."""

    @intrinsic
    def load(typing: Any, tag: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return load_vector(builder, tag, arguments[1], arguments[2])

        return _vector_type(tag)(tag, types.intp, types.intp), generate

    return load


load_left = _loader(load_value)
load = _loader(lambda builder, tag, *place: load_lanes(builder, _vector_type(tag), *place))
broadcast = _loader(lambda builder, tag, *place: _broadcast(builder, _vector_type(tag), *place))  # to all lanes


@intrinsic
def zero(typing: Any, tag: Any) -> Any:
    """A vector of zeros."""
    vector = _vector_type(tag)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return constant(vector, 0.0)

    return vector(tag), generate


@intrinsic
def store(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """Write a vector to elements [index, index + lanes)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _lanes_pointer(builder, value, arguments[0], arguments[1])
        builder.store(arguments[2], pointer).align = value.itemsize
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value), generate


def _accumulator(dtype: str | None) -> Any:
    """A compiled function that adds a vector to an array of a type; None: of the vector's type."""

    @intrinsic
    def accumulate(typing: Any, address: Any, index: Any, value: Any) -> Any:
        target = VectorType(dtype or value.dtype, value.lanes)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _lanes_pointer(builder, target, arguments[0], arguments[1])
            added = arguments[2] if target.dtype == value.dtype else builder.fpext(arguments[2], target.llvm)
            before = builder.load(pointer)
            before.align = target.itemsize
            builder.store(builder.fadd(before, added), pointer).align = target.itemsize
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, value), generate

    return accumulate


accumulate = _accumulator(None)  # add a vector to elements [index, index + lanes)
accumulate_double = _accumulator("float64")  # the same, to an array of float64


@intrinsic
def multiply_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, fused where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, f"llvm.fmuladd.{suffix(a)}", a.llvm, *arguments)

    return a(a, b, c), generate


@intrinsic
def add_lanes(typing: Any, value: Any) -> Any:
    """The sum of all lanes, first to last, as a vector of one float64."""
    total = VectorType("float64", 1)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found, first = ir.Constant(ir.DoubleType(), 0.0), ir.Constant(ir.IntType(32), 0)
        for lane in range(value.lanes):
            one = builder.extract_element(arguments[0], ir.Constant(ir.IntType(32), lane))
            found = builder.fadd(found, one if value.dtype == "float64" else builder.fpext(one, ir.DoubleType()))
        return builder.insert_element(ir.Constant(total.llvm, ir.Undefined), found, first)

    return total(value), generate


@intrinsic
def choose(typing: Any, condition: Any, a: Any, b: Any) -> Any:
    """Vector a if the condition holds, else b."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return a(types.boolean, a, b), generate


def _operator(function: Any, instruction: str) -> None:
    """Give vectors an operator of Python as one instruction, without a function that numba would have to compile."""

    @infer_global(function)
    class _Typing(AbstractTemplate):
        def generic(self, arguments: Any, keywords: Any) -> Any:
            vectors = len(arguments) == 2 and isinstance(arguments[0], VectorType)
            return signature(arguments[0], *arguments) if vectors else None

    @lower_builtin(function, VectorType, VectorType)
    def _generate(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments, flags=CONTRACT)


_operator(operator.add, "fadd")
_operator(operator.mul, "fmul")
