"""Predictions of `describe` are close to the time of a matrix, on a simulated machine of known speed."""

from dataclasses import dataclass

import numpy as np
import pytest

import tangentless as tl
from tangentless import timing

RATE = 1e9  # elements a second of one lane
PREPARING = 1.5  # time of preparing an image, in pairs


@dataclass(frozen=True)
class Images:
    count: int
    lanes: int
    tile: int = 64

    def __len__(self):
        return self.count

    def __getitem__(self, part):
        return Images(len(range(*part.indices(self.count))), self.lanes)


class Machine:
    """A simulated CPU backend: each lane of a vector is an image, and blocks of lanes are distributed over threads."""

    name = "simulated"

    def __init__(self, lanes, threads):
        self.lanes, self.n_jobs, self.clock = lanes, threads, 0.0

    def prepare(self, graph, images):
        blocks = -(-len(images) // self.lanes)
        self.clock += 1e-4 + PREPARING * graph.elements / RATE * -(-blocks // self.n_jobs)
        return Images(len(images), self.lanes)

    def block(self, graph, left, right, *, upper=False, advance=None):
        threads = [1e-4] * self.n_jobs
        task = max(1, int(6e7 / (graph.elements * self.lanes)))  # rows of a task
        for block in reversed(range(-(-len(right) // self.lanes))):
            rows = min(len(left), (block + 1) * self.lanes) if upper else len(left)
            for first in range(0, rows, task):
                threads.sort()
                threads[0] += 1e-6 + min(task, rows - first) * graph.elements / RATE
        self.clock += max(threads)
        return np.zeros((len(left), len(right)))


@pytest.mark.parametrize("count", [48, 75, 300])
@pytest.mark.parametrize("side", [8, 16, 32, 64, 100])
@pytest.mark.parametrize(("lanes", "threads"), [(1, 1), (8, 2), (16, 2), (16, 1)])
def test_predictions_are_within_a_half_of_the_truth(monkeypatch, lanes, threads, side, count):
    machine = Machine(lanes, threads)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: machine.clock)
    graph = tl.kernel("myrtle5").graph((side, side, 3))
    speed = timing.measure(machine, graph)
    start = machine.clock
    prepared = machine.prepare(graph, np.empty(count))
    machine.block(graph, prepared, prepared, upper=True)
    predicted = speed.matrix_seconds(count) + count / speed.images
    assert 1 / 1.5 < predicted / (machine.clock - start) < 1.5


def test_the_cpu_backend_says_how_many_images_it_computes_together():
    from tangentless.backends.cpu import CpuBackend
    from tangentless.backends.cpu.simd import host_lanes

    graph = tl.kernel("conv3 relu globalpool").graph((4, 4, 1))
    assert timing.lanes_of(CpuBackend().prepare(graph, np.ones((1, 4, 4, 1)))) == host_lanes("float32")
