"""Plans for `stage.cu`: which graphs it can run, and how each stage shares out its work among threads.

The fused kernel runs chains of 3×3 windows, embeddings and 2×2 pools. `layout.cuh` describes the parameters of a stage.
This module chooses them, or says why no choice fits.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...forms import TOLERANCE, at_unit_scale, lower
from ...graph import Graph
from ...layers import Normalize
from ..segments import Embedding, Segment, patched_chain
from .layout import ARC, EXPONENTIAL, IDENTITY, LONG_RING, SERIES, SHORT_RING, FrontPlan, LayerForm, StagePlan

# Powers of t in the polynomial of an arc, shortest first; the first is within the tolerance of float32 for ReLU. A
# polynomial costs one multiplication less than it has powers, because t is scaled so that the leading coefficient is 1.
BENDS = ((0, 1, 2, 4), (0, 1, 2, 3, 5), (0, 1, 2, 3, 4, 6))
MAX_COEFFICIENTS = 32
MAX_GRID = 32
MAX_LAYERS = 6  # of one stage: their rows are kept in registers
MAX_DEPTH = 24  # layers of all stages: sums grow ninefold with each and must stay in the range of float32
REGISTER_LIMIT = 65536  # of a multiprocessor
OTHER_REGISTERS = 64  # of a thread, beside the values it works on
# Values that a thread keeps from step to step, up to which there are registers to compute patches one step ahead.
MOST_KEPT = 160
READING_REGISTERS = 160  # of a thread, at least, where it reads two rows ahead from the stage before
TOTAL_REGISTERS = 16  # additional ones where a warp adds up the whole grid of a pair in float64
WARPS_OF_BLOCK = 8  # two for each scheduler, which together have all registers
SMALL_TEAMS = 4  # teams of a block where a team is one warp


def plan_graph(graph: Graph, shared_limit: int) -> tuple[StagePlan, ...] | str:
    """A plan for every stage, or the reason why the fused kernel cannot run the graph.

    `shared_limit` is the largest shared memory of a block on the GPU, in bytes.
    """
    if graph.tangent:
        return "tangents need float64"
    found = patched_chain(graph)
    if isinstance(found, str):
        return found
    stages, patch = found
    channels = graph.channels * math.prod(patch)
    if sum(len(stage.steps) for stage in stages) > MAX_DEPTH:
        return f"it has more than {MAX_DEPTH} layers"
    plans: list[StagePlan] = []
    for index, stage in enumerate(stages):
        last = index + 1 == len(stages)
        plan = _plan_stage(stage, 0 if plans else channels, last, plans[-1] if plans else None, shared_limit)
        if isinstance(plan, str):
            return f"stage {index + 1}: {plan}"
        plans.append(plan)
    return f"float32 has too few digits: {graph.delicate}" if graph.delicate else tuple(plans)


def layer_form(embedding: Embedding) -> LayerForm | None:
    """An embedding in the form that the kernels evaluate, or None if it has none."""
    if embedding is None:
        return LayerForm(IDENTITY)
    if isinstance(embedding, Normalize):
        return LayerForm(SERIES, (0.0, 1.0), keep_norms=False)
    form = embedding.form()
    lowered = None if form is None else lower(form, TOLERANCE["float32"], longest=0, arcs=BENDS)
    if lowered is None or (lowered.kind == "arc" and lowered.powers not in BENDS):
        return None
    if lowered.kind == "exp2":  # the GPU has an instruction for powers of two
        return LayerForm(EXPONENTIAL, rate=lowered.rate)
    if lowered.kind == "series":
        return LayerForm(SERIES, lowered.coefficients)
    if lowered.arc == 0.0:
        return LayerForm(SERIES, (0.0, lowered.linear))
    coefficients = [lowered.arc * c for c in lowered.coefficients]
    scale, scaled = at_unit_scale(
        coefficients, [power + 0.5 for power in lowered.powers]
    )  # powers include that of the root of t
    return LayerForm(ARC, scaled[-2::-1], linear=lowered.linear, arc=lowered.arc, scale=scale)


def _plan_stage(
    stage: Segment, channels: int, last: bool, source: StagePlan | None, shared_limit: int
) -> StagePlan | str:
    height, width = stage.grid
    if max(height, width) > MAX_GRID:
        return f"a {height}×{width} grid is larger than {MAX_GRID}×{MAX_GRID}"
    if min(height, width) < 2:
        return f"a {height}×{width} grid is not two-dimensional"
    if not 1 <= len(stage.steps) <= MAX_LAYERS:
        return f"{len(stage.steps)} layers before a pool; 1 to {MAX_LAYERS} fit"
    layers = _forms(stage, source is not None and source.layers[-1].leaves_positive)
    if isinstance(layers, str):
        return layers
    if stage.pool != (stage.grid if last else (2, 2)):
        return f"a {stage.pool[0]}×{stage.pool[1]} pool; only 2×2 pools and a final one of the whole grid fit"
    if stage.exits[0].weights is not None and layers[-1].form not in (EXPONENTIAL, SERIES):
        return "its last pool gives positions different weights, which fits only after a Gaussian or a polynomial"
    for patch_steps, given in _entrances(channels, width, len(layers)):
        plan = _shares(height, width, channels, layers, last, patch_steps, source, given)
        if plan.shared_bytes > shared_limit:
            plan = replace(plan, ring=SHORT_RING)
        if plan.shared_bytes > shared_limit:
            plan = replace(plan, outer=False)
        while plan.shared_bytes > shared_limit and plan.teams > 1:
            plan = replace(plan, teams=plan.teams // 2)
        if max(plan.shared_bytes, FrontPlan(plan).shared_bytes if given else 0) <= shared_limit:
            return replace(plan, blocks=_blocks(plan, shared_limit))
    return f"{channels} channels and {len(layers)} layers need more than the {shared_limit >> 10} KiB of shared memory"


def _forms(stage: Segment, positive: bool) -> tuple[LayerForm, ...] | str:
    """The layers of a stage, or why one of them does not fit. `positive`: the input is never negative."""
    layers: list[LayerForm] = []
    for step in stage.steps:
        form = layer_form(step.embedding)
        if step.window != (3, 3):
            return f"a {step.window[0]}×{step.window[1]} window; 3×3 fits"
        if form is None:
            return f"{step.embedding} has no closed form"
        if len(form.coefficients) > MAX_COEFFICIENTS:
            return f"{step.embedding} is a polynomial of a degree above {MAX_COEFFICIENTS - 1}"
        layers.append(replace(form, positive=positive))
        positive = layers[-1].leaves_positive
    return tuple(layers)


def _entrances(channels: int, width: int, layers: int) -> tuple[tuple[int, bool], ...]:
    """How a stage may compute its input, fastest first: (steps of tensor cores for a patch, whether patches are given).

    A step is 16 entries; a column of three pixels has 3 × 3 C of them, because each number has three parts. Zero steps:
    without tensor cores.
    """
    if not channels or width <= 8 or layers < 2:
        return ((0, False),)
    return (math.ceil(9 * channels / 16), False), (0, False), (0, True)


def _shares(
    height: int,
    width: int,
    channels: int,
    layers: tuple[LayerForm, ...],
    last: bool,
    patch_steps: int,
    source: StagePlan | None,
    given: bool,
) -> StagePlan:
    patches = patch_steps > 0 or given
    if patches:
        block, lanes = ((4, 8) if width > 16 else (2, 4)), (8, 4)
    else:
        block = (4, 8) if width > 16 else (4, 4)
        lanes = _lanes(height, (math.ceil(width / block[0]), math.ceil(width / block[1])), last)
    rows = 32 // (lanes[0] * lanes[1])
    pairs, warps = max(1, min(8, rows // height)), _warps(height, rows, last)
    teams = max(1, WARPS_OF_BLOCK // warps) if warps > 1 else SMALL_TEAMS
    if source and warps > 1 and (last or rows % 2 == 0) and height % rows == 0:
        warps, teams = 1, SMALL_TEAMS  # little to share between warps: teams of one warp need no barrier
    windows = len(layers) - 1  # in registers, with patches
    kept = block[0] * block[1] * (2 * windows + 1)
    ahead = patches and kept <= MOST_KEPT
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
        ring=LONG_RING if patches and warps > 1 and not last else SHORT_RING,
        ahead=ahead,
        outer=ahead,  # takes registers as well
        source=source,
        given=given,
    )


def _lanes(height: int, needed: tuple[int, int], last: bool) -> tuple[int, int]:
    """Lanes that hold a row: as few as needed, or more if the offsets could not be divided among warps otherwise."""
    choices = (needed, *(lanes for lanes in ((4, 4), (8, 4)) if lanes[0] >= needed[0] and lanes[1] >= needed[1]))
    return next(lanes for lanes in choices if _warps(height, 32 // math.prod(lanes), last))


def _warps(height: int, rows: int, last: bool) -> int:
    """Warps of a team: enough for all offsets at once, or for a divisor of them, even unless `last`; 0: none fits."""
    if math.ceil(height / rows) <= WARPS_OF_BLOCK:
        return math.ceil(height / rows)
    fitting = (n for n in range(1, WARPS_OF_BLOCK + 1) if height % (n * rows) == 0 and (last or n * rows % 2 == 0))
    return max(fitting, default=0)


def _blocks(plan: StagePlan, shared_limit: int) -> int:
    """Blocks per multiprocessor: as many as shared memory and registers allow."""
    values = plan.block[0] * plan.block[1]
    registers = min(255, 2 * values * (plan.windows + 1) + OTHER_REGISTERS)
    if plan.source:
        registers = max(registers, READING_REGISTERS) + (TOTAL_REGISTERS if plan.last and plan.pairs == 1 else 0)
    by_memory = shared_limit // (plan.shared_bytes + 1024)
    return max(1, min(by_memory, REGISTER_LIMIT // (-(-registers // 8) * 8 * plan.threads)))
