"""How a program is laid out on the GPU: which stages the fused kernel takes, and with which shares of threads.

`stage.cu` describes the roles of the parameters; this module picks them for every stage, and works out the sizes that
the launch needs. The kernel checks at compile time that it agrees.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tangentless.forms import Arc, Exponential, Series, arc_powers, at_unit_scale
from tangentless.layers import Normalize, ReLU
from tangentless.program import Embedding, Program

from .layout import ARC, EXPONENTIAL, IDENTITY, LONG_RING, SERIES, SHORT_RING, LayerForm, StagePlan

# Powers of w = 1 - |cos| for the bend of ReLU. Each sum takes a multiplication less than it has powers: w may have any
# scale, and one makes the last coefficient 1. They reach 3e-8 and 1e-7, and three of them 2e-6.
LONG_BEND, BEND, SHORT_BEND = (0.0, 1.0, 2.0, 3.0, 5.0), (0.0, 1.0, 2.0, 4.0), (0.0, 1.0, 2.5)
MANY = 512  # positions of a grid, from which on errors are sure to cancel
# Three layers of ReLU may have short ones: in the first layer, where cosines of images are spread and errors cancel;
# in the third one which is best where w of whitened images lies, here with its spread. For other images it is off by
# up to 1e-5, but alike for all of a kind. A normalised kernel of three stages then is off by 1e-7 at most, and its
# distance from 1 by 1e-5 of itself, for pixels as they are, shifted, flat and half black images and noise too. With
# fewer stages errors do not cancel as well.
SHORT = {0: None, 2: (0.54, 0.09)}
MAX_COEFFICIENTS = 32
MAX_GRID = 32
MAX_LAYERS = 6  # of one stage: their rows live in registers
MAX_DEPTH = 24  # of all stages: sums grow ninefold with each layer and must stay in the range of float32
REGISTER_LIMIT = 65536  # of a multiprocessor
OTHER_REGISTERS = 64  # of a thread, beside the values it works on
MOST_KEPT = 160  # values of a thread from step to step, where rows and patches made ahead fit into the registers
READING_REGISTERS = 160  # of a thread at least, where two rows are on their way from the stage before
TOTAL_REGISTERS = 16  # more of them, where a warp adds up the whole grid of a pair in float64
WARPS_OF_BLOCK = 8  # two for each scheduler, with all the registers there are
SMALL_TEAMS = 4  # of a block, where one warp is enough for a pair


def plan_program(program: Program, shared_limit: int) -> tuple[StagePlan, ...] | str:
    """A plan for every stage, or the reason why the fused kernel cannot take the program.

    `shared_limit` is what a block of the GPU can have of shared memory, in bytes.
    """
    if not program.stages:
        return "there is no window in it"
    if sum(len(stage.steps) for stage in program.stages) > MAX_DEPTH:
        return f"it has more than {MAX_DEPTH} layers"
    plans: list[StagePlan] = []
    for index in range(len(program.stages)):
        plan = _plan_stage(program, index, plans[-1] if plans else None, shared_limit)
        if isinstance(plan, str):
            return f"stage {index + 1}: {plan}"
        plans.append(plan)
    return f"float32 is too short: {program.delicate}" if program.delicate else tuple(plans)


def layer_form(embedding: Embedding, bend: tuple[float, ...] = LONG_BEND) -> LayerForm | None:
    """An embedding as the kernels know it, or None if they do not."""
    if embedding is None:
        return LayerForm(IDENTITY)
    if isinstance(embedding, Normalize):
        return LayerForm(SERIES, (0.0, 1.0), keep_norms=False)
    form = embedding.form()
    if isinstance(form, Exponential):
        return LayerForm(EXPONENTIAL, gamma=form.gamma)
    if isinstance(form, Arc):
        return LayerForm(SERIES, (0.0, form.linear)) if form.arc == 0.0 else _arc(form, bend)
    if isinstance(form, Series):
        return LayerForm(SERIES, form.coefficients)
    return None


def _arc(form: Arc, powers: tuple[float, ...], near: tuple[float, float] | None = None) -> LayerForm:
    """An arc whose bend is a sum of powers of w, at the scale of w where the coefficient of the last one is 1."""
    coefficients = [form.arc * c for c in arc_powers(powers, near)]
    scale, scaled = at_unit_scale(coefficients, [power + 0.5 for power in powers])  # with the root of w
    return LayerForm(ARC, scaled[-2::-1], linear=form.linear, arc=form.arc, scale=scale)


def _plan_stage(program: Program, index: int, source: StagePlan | None, shared_limit: int) -> StagePlan | str:
    stage, channels = program.stages[index], program.channels if index == 0 else 0
    (height, width), last = stage.grid, index + 1 == len(program.stages)
    if max(height, width) > MAX_GRID:
        return f"a {height}×{width} grid is larger than {MAX_GRID}×{MAX_GRID}"
    if min(height, width) < 2:
        return f"a {height}×{width} grid is not two-dimensional"
    if not 1 <= len(stage.steps) <= MAX_LAYERS:
        return f"{len(stage.steps)} layers before a pool; 1 to {MAX_LAYERS} fit"
    layers = _forms(program, index, source is not None and source.layers[-1].leaves_positive)
    if isinstance(layers, str):
        return layers
    if stage.pool != (stage.grid if last else (2, 2)):
        return f"a {stage.pool[0]}×{stage.pool[1]} pool; 2×2 and a final global one fit"
    for patch_steps in (_patch_steps(channels, width, len(layers)), 0):
        plan = _shares(height, width, channels, layers, last, patch_steps, source)
        if plan.shared_bytes > shared_limit:
            plan = replace(plan, ring=SHORT_RING)
        if plan.shared_bytes > shared_limit:
            plan = replace(plan, outer=False)
        while plan.shared_bytes > shared_limit and plan.teams > 1:
            plan = replace(plan, teams=plan.teams // 2)
        if plan.shared_bytes <= shared_limit:
            return replace(plan, blocks=_blocks(plan, shared_limit))
    return f"{channels} channels and {len(layers)} layers need more than the {shared_limit // 1024} KB of shared memory"


def _forms(program: Program, index: int, positive: bool) -> tuple[LayerForm, ...] | str:
    """Layers of a stage of the program, or why there is one that does not fit."""
    stage = program.stages[index]
    many = index == 0 and math.prod(stage.grid) >= MANY
    layers: list[LayerForm] = []
    for step in stage.steps:
        form = layer_form(step.embedding, BEND if many else LONG_BEND)
        if step.window != (3, 3):
            return f"a {step.window[0]}×{step.window[1]} window; 3×3 fits"
        if form is None:
            return f"{step.embedding} has no closed form"
        if len(form.coefficients) > MAX_COEFFICIENTS:
            return f"{step.embedding} is a polynomial of a degree above {MAX_COEFFICIENTS - 1}"
        layers.append(replace(form, positive=positive))
        positive = layers[-1].leaves_positive
    cancel = len(program.stages) > 2 and isinstance(next(iter(program.head), None), Normalize)
    if many and cancel and len(layers) == 3 and all(isinstance(step.embedding, ReLU) for step in stage.steps):
        for number, near in SHORT.items():
            layers[number] = replace(_arc(Arc(), SHORT_BEND, near), positive=layers[number].positive)
    return tuple(layers)


def _patch_steps(channels: int, width: int, layers: int) -> int:
    """Steps of 16 entries that make up a column of three pixels, in three parts; 0 where tensor cores are no use."""
    return math.ceil(9 * channels / 16) if width > 8 and layers > 1 else 0


def _shares(
    height: int,
    width: int,
    channels: int,
    layers: tuple[LayerForm, ...],
    last: bool,
    patch_steps: int,
    source: StagePlan | None,
) -> StagePlan:
    if patch_steps:
        block, lanes = ((4, 8) if width > 16 else (2, 4)), (8, 4)
    else:
        block = (4, 8) if width > 16 else (4, 4)
        lanes = _lanes(height, (math.ceil(width / block[0]), math.ceil(width / block[1])), last)
    rows = 32 // (lanes[0] * lanes[1])
    pairs, warps = max(1, min(8, rows // height)), _warps(height, rows, last)
    teams = max(1, WARPS_OF_BLOCK // warps) if warps > 1 else SMALL_TEAMS
    if source and warps > 1 and (last or rows % 2 == 0) and height % rows == 0:
        warps, teams = 1, SMALL_TEAMS  # little to share: warps need not meet
    windows = len(layers) - 1  # in registers, if there are patches
    kept = block[0] * block[1] * (2 * windows + 1)
    ahead = patch_steps > 0 and kept <= MOST_KEPT
    return StagePlan(
        height=height,
        width=width,
        channels=channels,
        layers=layers,
        last=last,
        patch_steps=patch_steps,
        block=block,
        lanes=lanes,
        pairs=pairs,
        warps=warps,
        teams=teams,
        blocks=1,
        ring=LONG_RING if patch_steps and warps > 1 and not last else SHORT_RING,
        ahead=ahead,
        outer=ahead,  # it takes registers too
        source=source,
    )


def _lanes(height: int, needed: tuple[int, int], last: bool) -> tuple[int, int]:
    """Lanes that hold a row: as few as are needed, or more where offsets could not be shared out among warps."""
    choices = (needed, *(lanes for lanes in ((4, 4), (8, 4)) if lanes[0] >= needed[0] and lanes[1] >= needed[1]))
    return next(lanes for lanes in choices if _warps(height, 32 // math.prod(lanes), last))


def _warps(height: int, rows: int, last: bool) -> int:
    """Warps of a team: all offsets at once, or an even divisor of them; 0 where neither will do."""
    if math.ceil(height / rows) <= WARPS_OF_BLOCK:
        return math.ceil(height / rows)
    fitting = (n for n in range(1, WARPS_OF_BLOCK + 1) if height % (n * rows) == 0 and (last or n * rows % 2 == 0))
    return max(fitting, default=0)


def _blocks(plan: StagePlan, shared_limit: int) -> int:
    """Blocks per multiprocessor, as many as shared memory and registers allow."""
    values = plan.block[0] * plan.block[1]
    registers = min(255, 2 * values * (plan.windows + 1) + OTHER_REGISTERS)
    if plan.source:
        registers = max(registers, READING_REGISTERS) + (TOTAL_REGISTERS if plan.last and plan.pairs == 1 else 0)
    by_memory = shared_limit // (plan.shared_bytes + 1024)
    return max(1, min(by_memory, REGISTER_LIMIT // (-(-registers // 8) * 8 * plan.threads)))
