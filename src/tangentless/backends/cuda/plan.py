"""How a program is laid out on the GPU: which stages the fused kernel takes, and with which shares of threads.

`stage.cu` describes the roles of the parameters; this module picks them for every stage, and works out the sizes that
the launch needs. The kernel checks at compile time that it agrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tangentless.forms import Arc, Exponential, Series, arc_polynomial
from tangentless.layers import Normalize
from tangentless.program import Embedding, Program, Stage, Step

TOLERANCE = 1e-8  # of the polynomials, well below the rounding of float32
MAX_COEFFICIENTS = 32
MAX_GRID = 32
MAX_LAYERS = 6  # of one stage: their rows live in registers
MAX_DEPTH = 24  # of all stages: sums grow ninefold with each layer and must stay in the range of float32
SHARED_LIMIT = 227 * 1024  # bytes of one block
REGISTER_LIMIT = 65536  # of a multiprocessor

EXPONENTIAL, ARC, SERIES, IDENTITY = range(4)  # as in device.cuh


@dataclass(frozen=True)
class LayerForm:
    """An embedding as the kernels know it."""

    form: int
    coefficients: tuple[float, ...] = ()
    linear: float = 0.0
    arc: float = 1.0
    gamma: float = 0.0
    keep_norms: bool = True

    @property
    def text(self) -> str:
        """The initialiser of a `Layer` in device.cuh."""
        numbers = ",".join(_literal(value) for value in self.coefficients)
        return f"{{{self.form},{len(self.coefficients)},{_literal(self.linear)},{_literal(self.arc)},{{{numbers}}}}}"


@dataclass(frozen=True)
class StagePlan:
    """The parameters of one fused stage."""

    height: int
    width: int
    channels: int  # 0: the input is another stage's output
    layers: tuple[LayerForm, ...]
    last: bool
    strip: int
    lines: int
    groups: int
    pairs: int
    parts: int
    teams: int
    blocks: int
    source: StagePlan | None

    @property
    def warps_across(self) -> int:
        return math.ceil(self.width // self.lines / self.groups)

    @property
    def team_threads(self) -> int:
        return 32 * self.warps_across * self.parts

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.teams * self.team_threads

    @property
    def slots(self) -> int:
        """Pairs a block works on at a time."""
        return self.teams * self.pairs

    @property
    def image_floats(self) -> int:
        """Of one image's planes, in global memory."""
        return self.planes * self.height * self.width

    @property
    def planes(self) -> int:
        return self.channels + 2 * len(self.layers)

    @property
    def pool_size(self) -> int:
        """Positions in a window of the pool."""
        return self.height * self.width if self.last else 4

    @property
    def output_floats(self) -> int:
        """Of one pair's pooled kernel."""
        if self.last:
            return 0
        offsets = self.parts * (self.height // self.parts // 2 + 1)
        half = self.width // 2
        return offsets * (self.height // 2) * (half + self.warps_across) * half

    @property
    def shared_floats(self) -> int:
        """Of a block's shared memory."""
        x_floats = self.planes * _round4(self.height * self.width)
        z_floats = (self.planes + self.channels % 2) * self.height * _round4(self.width + self.strip + self.lines - 1)
        warps = self.threads // 32
        if self.last:
            rest = 2 * self.threads
        else:
            strips, half_strip = self.width // self.strip, self.strip // 2
            sums = self.height // 2 * 32 * (self.lines // 2) * half_strip
            rest = warps * (sums + _round4(self.height // 2 * self.pairs * strips * half_strip))
        return z_floats + self.slots * x_floats + rest

    def defines(self) -> tuple[str, ...]:
        """The kernel's parameters, for the compiler's command line."""
        source = self.source
        values: dict[str, int | str] = {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "CHANNELS": self.channels,
            "LAYER_LIST": ",".join(layer.text for layer in self.layers),
            "LAST": int(self.last),
            "STRIP": self.strip,
            "LINES": self.lines,
            "GROUPS": self.groups,
            "PAIRS": self.pairs,
            "PARTS": self.parts,
            "TEAMS": self.teams,
            "BLOCKS": self.blocks,
            "IN_PARTS": source.parts if source else 1,
            "IN_WARPS": source.warps_across if source else 1,
            "IN_SLOTS": source.groups * source.lines // 2 if source else 1,
            "SHARED_BYTES": 4 * self.shared_floats,
            "OUTPUT_FLOATS": self.output_floats,
        }
        return tuple(f"-D{name}={value}" for name, value in values.items())


def plan_program(program: Program) -> tuple[StagePlan, ...] | str:
    """A plan for every stage, or the reason why the fused kernel cannot take the program."""
    if not program.stages:
        return "there is no window in it"
    if sum(len(stage.steps) for stage in program.stages) > MAX_DEPTH:
        return f"it has more than {MAX_DEPTH} layers"
    plans: list[StagePlan] = []
    for number, stage in enumerate(program.stages, start=1):
        channels = program.channels if number == 1 else 0
        plan = _plan_stage(stage, channels, number == len(program.stages), plans[-1] if plans else None)
        if isinstance(plan, str):
            return f"stage {number}: {plan}"
        plans.append(plan)
    return tuple(plans)


def layer_form(embedding: Embedding) -> LayerForm | None:
    """An embedding as the kernels know it, or None if they do not."""
    if embedding is None:
        return LayerForm(IDENTITY)
    if isinstance(embedding, Normalize):
        return LayerForm(SERIES, (0.0, 1.0), keep_norms=False)
    form = embedding.form()
    if isinstance(form, Exponential):
        return LayerForm(EXPONENTIAL, gamma=form.gamma)
    if isinstance(form, Arc):
        bend = tuple(form.arc * c for c in arc_polynomial(TOLERANCE))
        return LayerForm(ARC, bend, linear=form.linear, arc=form.arc)
    if isinstance(form, Series):
        return LayerForm(SERIES, form.coefficients)
    return None


def _plan_stage(stage: Stage, channels: int, last: bool, source: StagePlan | None) -> StagePlan | str:
    height, width = stage.grid
    if max(height, width) > MAX_GRID:
        return f"a {height}×{width} grid is larger than {MAX_GRID}×{MAX_GRID}"
    if not 1 <= len(stage.steps) <= MAX_LAYERS:
        return f"{len(stage.steps)} layers before a pool; 1 to {MAX_LAYERS} fit"
    layers = _forms(stage.steps)
    if isinstance(layers, str):
        return layers
    if stage.pool != (stage.grid if last else (2, 2)):
        return f"a {stage.pool[0]}×{stage.pool[1]} pool; 2×2 and a final global one fit"
    strip = _strip(width, last)
    if strip is None:
        return f"a width of {width} has no suitable divisor"
    return _shares(height, width, channels, layers, last, strip, source)


def _forms(steps: tuple[Step, ...]) -> tuple[LayerForm, ...] | str:
    layers = []
    for step in steps:
        form = layer_form(step.embedding)
        if step.window != (3, 3):
            return f"a {step.window[0]}×{step.window[1]} window; 3×3 fits"
        if form is None:
            return f"{step.embedding} has no closed form"
        if len(form.coefficients) > MAX_COEFFICIENTS:
            return f"{step.embedding} is a polynomial of a degree above {MAX_COEFFICIENTS - 1}"
        layers.append(form)
    return tuple(layers)


def _strip(width: int, last: bool) -> int | None:
    """Columns of a thread: four where that divides the width, else another small divisor; even before a pool of two."""
    for strip in (4, 2, 6) if width % 2 == 0 else (3, 5, 7, 11, 13):
        if width % strip == 0 and width // strip <= 32:
            return strip
    return None


def _shares(
    height: int,
    width: int,
    channels: int,
    layers: tuple[LayerForm, ...],
    last: bool,
    strip: int,
    source: StagePlan | None,
) -> StagePlan | str:
    lines = _lines(width, layers)
    registers = 255 if lines == 4 else 128
    strips, line_groups = width // strip, width // lines
    across = math.ceil(line_groups / (32 // strips))
    groups = math.ceil(line_groups / across)
    pairs = min(4, 32 // (strips * groups)) if across == 1 else 1
    parts = 2 if across > 1 and height % 4 == 0 else 1
    for warps in (16, 8, 4, 2, 1) if across > 1 else (4, 2, 1):
        teams = max(1, warps // (across * parts))
        plan = StagePlan(height, width, channels, layers, last, strip, lines, groups, pairs, parts, teams, 1, source)
        if 4 * plan.shared_floats <= SHARED_LIMIT and plan.threads * registers <= REGISTER_LIMIT:
            return replace(plan, blocks=_blocks(plan, registers))
    return f"{channels} channels and {len(layers)} layers need more shared memory than a block has"


def _lines(width: int, layers: tuple[LayerForm, ...]) -> int:
    """Offsets of a thread: more share more loads, but need more registers, so fewer warps are at work."""
    return 2 if width % 2 == 0 else 1


def _blocks(plan: StagePlan, registers: int) -> int:
    """Blocks per multiprocessor, as many as shared memory and registers allow."""
    by_memory = SHARED_LIMIT // (4 * plan.shared_floats + 1024)
    return max(1, min(by_memory, REGISTER_LIMIT // (registers * plan.threads)))


def _round4(count: int) -> int:
    return -(-count // 4) * 4


def _literal(value: float) -> str:
    return f"{float(value)!r}f"
