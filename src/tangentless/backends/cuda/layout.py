"""The layout of a fused stage on the GPU: how work is divided among threads, rows in memory, and all sizes.

All arithmetic of the layout is here. The kernels get every size as a compile-time constant, and assert what they rely
on; `layout.cuh` describes each constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

SHORT_RING, LONG_RING = 4, 8  # rows of x in shared memory
EXPONENTIAL, ARC, SERIES, IDENTITY = range(4)  # as in layout.cuh


@dataclass(frozen=True)
class LayerForm:
    """An embedding in the form that the kernels evaluate; `embedding.cuh` has the formulas."""

    form: int
    coefficients: tuple[float, ...] = ()
    linear: float = 0.0  # of an arc: the factor of s
    arc: float = 1.0  # of an arc: the factor of max(s, 0)
    rate: float = 0.0  # of an exponential: 2^(rate (c - 1))
    scale: float = 1.0  # of an arc: the factor of 1 / (A A') for which its polynomial has a leading 1
    keep_norms: bool = True  # False: values are not multiplied by A A' again
    positive: bool = False  # whether its input is never negative

    @property
    def leaves_positive(self) -> bool:
        """Whether its output is never negative."""
        if self.form in (EXPONENTIAL, ARC):
            return self.linear == 0.0
        return self.positive and (self.form == IDENTITY or not self.keep_norms)

    @property
    def text(self) -> str:
        """The initialiser of a `Layer` in layout.cuh."""
        numbers = ",".join(_literal(value) for value in self.coefficients)
        straight = f"{_literal(self.linear)},{_literal(self.arc)}"
        return f"{{{self.form},{len(self.coefficients)},{int(self.positive)},{straight},{{{numbers}}}}}"


@dataclass(frozen=True)
class StagePlan:
    """The parameters of one fused stage, and what follows from them."""

    height: int
    width: int
    channels: int  # of the images; 0: the input is the output of another stage
    layers: tuple[LayerForm, ...]
    last: bool  # the pool takes the whole grid
    patch_steps: int  # of tensor cores, 16 entries each; 0: without them
    block: tuple[int, int]  # values of a thread, along k and n
    lanes: tuple[int, int]  # threads that hold a row, along k and n
    pairs: int  # of a team at a time
    warps: int  # of a team
    teams: int  # of a block
    blocks: int  # of a multiprocessor
    ring: int  # rows of x in shared memory; with a long ring, warps of a team may be a turn (two rows) apart
    ahead: bool  # patches are computed one row before they are needed
    outer: bool  # tensor cores multiply the factors of x and z for a layer
    source: StagePlan | None  # the stage before
    given: bool = False  # patches come from memory, where the kernel of a `FrontPlan` stored them

    @property
    def rows(self) -> int:
        """Rows that a warp holds, each at its own offset u."""
        return 32 // math.prod(self.lanes)

    @property
    def offsets(self) -> int:
        """Offsets u that a team works on at a time."""
        return self.height if self.pairs > 1 else min(self.height, self.rows * self.warps)

    @property
    def windows(self) -> int:
        """Window sums over rows in registers: one for each layer, except a first one with patches."""
        return len(self.layers) - (self.patch_steps > 0 or self.given)

    @property
    def team_threads(self) -> int:
        return 32 * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.teams * self.team_threads

    @property
    def slots(self) -> int:
        """Pairs that a block works on at a time."""
        return self.teams * self.pairs

    @property
    def spans(self) -> tuple[int, int]:
        """Columns of a row of x and of z, including padding beyond the grid."""
        return self.lanes[0] * self.block[0], self.lanes[1] * self.block[1]

    @property
    def planes(self) -> int:
        """Planes of a layer in a row: two, one of which has two parts if tensor cores multiply it."""
        return 3 if self.outer else 2

    @property
    def layers_at(self) -> tuple[int, int]:
        """Where the planes of layers begin in a row of x and of z, after patches or channels; in floats."""
        per_column = 0 if self.given else 8 * self.patch_steps or self.channels
        return per_column * self.spans[0], per_column * self.spans[1]

    @property
    def row_floats(self) -> tuple[int, int]:
        """Floats of a row of x and of z."""
        per_column = self.planes * len(self.layers)
        x, z = (at + per_column * span for at, span in zip(self.layers_at, self.spans, strict=True))
        return _round4(x), _round4(z)

    @property
    def pool_size(self) -> int:
        """Positions in a window of the pool."""
        return self.height * self.width if self.last else 4

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """The shape of the pooled kernel of a pair: (offsets u, rows, columns of x, columns of z)."""
        return self.height // 2, self.height // 2, self.width // 2, self.width // 2

    @property
    def output_floats(self) -> int:
        """Floats of a pair in the scratch memory between this stage and the next."""
        return 0 if self.last else math.prod(self.output_shape)

    @property
    def exchange_row(self) -> int:
        """Floats for pooled values of one row at one offset: 2×2 values are summed to one."""
        return math.prod(self.lanes) * (1 if self.last else math.prod(self.block) // 4)

    @property
    def exchange(self) -> int:
        """Floats for pooled values of two rows at all offsets."""
        return 0 if self.last else self.pairs * self.offsets * 2 * self.exchange_row

    @property
    def exchanges(self) -> int:
        """Buffers for two rows on their way to the output: a power of two, although a long ring needs only three."""
        return 4 if self.ring == LONG_RING else 2

    @property
    def exchange_at(self) -> int:
        """Where pooled values, or totals in float64, begin in a team's shared memory: after the ring."""
        return self.pairs * self.ring * self.row_floats[0]

    @property
    def barrier_at(self) -> int:
        """Where the team's barrier begins, if its warps may be apart."""
        return self.exchange_at + (2 * self.team_threads if self.last else self.exchanges * self.exchange)

    @property
    def team_floats(self) -> int:
        """Floats of a team's shared memory."""
        return self.barrier_at + (4 if self.ring == LONG_RING else 0)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: image z, and that of each team."""
        return 4 * (self.height * self.row_floats[1] + self.teams * self.team_floats)

    def defines(self) -> tuple[str, ...]:
        """The constants of the kernel, for the compiler's command line."""
        values: dict[str, int | str] = {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "CHANNELS": self.channels,
            "LAYER_LIST": ",".join(layer.text for layer in self.layers),
            "LAYERS": len(self.layers),
            "LAST": int(self.last),
            "BLOCK_K": self.block[0],
            "BLOCK_N": self.block[1],
            "LANES_K": self.lanes[0],
            "LANES_N": self.lanes[1],
            "LANES": math.prod(self.lanes),
            "ROWS": self.rows,
            "WARPS": self.warps,
            "TEAM_THREADS": self.team_threads,
            "PAIRS": self.pairs,
            "TEAMS": self.teams,
            "THREADS": self.threads,
            "BLOCKS": self.blocks,
            "SLOTS": self.slots,
            "OFFSETS": self.offsets,
            "PASSES": self.height // self.offsets,
            "WINDOWS": self.windows,
            "PATCH_STEPS": self.patch_steps,
            "AHEAD": int(self.ahead),
            "OUTER": int(self.outer),
            "GIVEN": int(self.given),
            "RING": self.ring,
            "SPAN_K": self.spans[0],
            "SPAN_N": self.spans[1],
            "PLANES": self.planes,
            "X_LAYERS_AT": self.layers_at[0],
            "Z_LAYERS_AT": self.layers_at[1],
            "X_ROW": self.row_floats[0],
            "Z_ROW": self.row_floats[1],
            "EXCHANGE_ROW": self.exchange_row,
            "EXCHANGE": self.exchange,
            "EXCHANGES": self.exchanges,
            "EXCHANGE_AT": self.exchange_at,
            "BARRIER_AT": self.barrier_at,
            "TEAM_FLOATS": self.team_floats,
            "SHARED_BYTES": self.shared_bytes,
            "HALF_HEIGHT": self.output_shape[0],
            "HALF_WIDTH": self.output_shape[2],
            "POOLED_FLOATS": math.prod(self.output_shape),
        }
        return tuple(f"-D{name}={value}" for name, value in values.items())


@dataclass(frozen=True)
class FrontPlan:
    """The parameters of `front.cu`, which computes the patches for a first stage that is `given` them."""

    stage: StagePlan
    last: ClassVar[bool] = False
    slots: ClassVar[int] = 1
    warps: ClassVar[int] = 8
    most_steps: ClassVar[int] = 4  # of 16 channels, so that two blocks fit into a multiprocessor

    @property
    def passes(self) -> int:
        """How often all rows are read, each time with some of the channels."""
        return math.ceil(self.stage.channels / (16 * self.most_steps))

    @property
    def steps(self) -> int:
        """Steps of 16 channels in a pass."""
        return math.ceil(self.stage.channels / (16 * self.passes))

    @property
    def row_floats(self) -> tuple[int, int]:
        """Floats of a row of x and of z: a number takes one, as two float16."""
        x, z = self.stage.spans
        return 16 * self.steps * x, 16 * self.steps * z

    @property
    def groups(self) -> int:
        """Blocks among which the offsets of a unit are divided."""
        return math.ceil(self.stage.height / self.warps)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def output_floats(self) -> int:
        """Floats of a pair in the scratch memory between this and the first stage."""
        return self.stage.height**2 * math.prod(self.stage.spans)

    @property
    def shared_bytes(self) -> int:
        x, z = self.row_floats
        return 4 * (2 * x + (self.warps + 1) * z)

    def defines(self) -> tuple[str, ...]:
        """The constants of the kernel, for the compiler's command line."""
        values = {
            "STEPS": self.steps,
            "PASSES": self.passes,
            "WARPS": self.warps,
            "GROUPS": self.groups,
            "X": self.row_floats[0],
            "Z": self.row_floats[1],
            "BYTES": self.shared_bytes,
        }
        return (*self.stage.defines(), *(f"-DFRONT_{name}={value}" for name, value in values.items()))


def _round4(count: int) -> int:
    return -(-count // 4) * 4


def _literal(value: float) -> str:
    return f"{float(value)!r}f"
