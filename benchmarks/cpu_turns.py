"""CPU benchmark: two versions of the package in turns, element rates of graphs, and seconds of a first call.

    python benchmarks/cpu_turns.py --before OTHER/src --output benchmarks/results/cpu_turns.json

Each version runs in processes of its own, which measure one at a time, so that other work on the machine affects both
alike. There are several processes of each, because two processes of one version differ by up to 8 %: their memory pages
map to different places of the cache. Times are processor seconds of one thread, the best of several rounds and
processes. Those of first calls are wall-clock seconds, with everything imported and an empty cache of compiled code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
CHAINS = [
    ("myrtle5", (32, 32, 3)),
    ("myrtle7", (32, 32, 3)),
    ("myrtle10", (32, 32, 3)),
    ("myrtle10-gaussian", (32, 32, 3)),
]
RESIDUAL = "residual(relu conv3 relu conv3)"
DILATED = "conv3(dilation=2) relu"
GRAPHS = {
    "myrtle5": "myrtle5",
    "residual blocks": f"conv3 {RESIDUAL} relu pool2 conv3 {RESIDUAL} relu pool2 conv3 relu globalpool normalize relu",
    "conv5": "conv5 relu conv5 relu pool2 conv5 relu pool2 conv5 relu globalpool normalize relu",
    "dilated conv3": f"{DILATED} {DILATED} pool2 {DILATED} globalpool normalize relu",
    "stride in place of pool": "conv3 relu conv3(stride=2) relu conv3 relu pool2 conv3 relu globalpool normalize relu",
    "pool": "conv3 relu conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool normalize relu",
    "resnet8": "resnet8",
    "resnet14": "resnet14",
}
COLD = (
    "myrtle5",
    "myrtle10-gaussian",
    "conv5 leakyrelu pool4 conv3 leakyrelu globalpool",
    "resnet8",
    "conv3 polynomial3 globalpool",
)


def serve() -> None:
    """Read JSON lines (architecture, shape, rows, columns, rounds); write the seconds of a block for each."""
    import tangentless as tl
    from tangentless.backends.cpu import CpuBackend

    backend = CpuBackend(n_jobs=1)
    for line in sys.stdin:
        text, shape, rows, columns, rounds = json.loads(line)
        X = np.random.default_rng(0).standard_normal((rows + columns, *shape))
        kernel = tl.kernel(text)
        left, right = kernel.prepare(backend, X[:rows]), kernel.prepare(backend, X[rows:])
        kernel.block(backend, left, right)
        seconds = []
        for _ in range(rounds):
            start = time.process_time()
            kernel.block(backend, left, right)
            seconds.append(time.process_time() - start)
        print(json.dumps(min(seconds)), flush=True)


class Version:
    """A process that measures one version of the package."""

    def __init__(self, source: Path, cache: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def seconds(self, *job: object) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))


def take_turns(sources: tuple[Path, Path], processes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Pairs per processor second of two versions, and their ratio, by architecture."""
    caches = tempfile.mkdtemp(), tempfile.mkdtemp()
    versions = [[Version(*one) for one in zip(sources, caches, strict=True)] for _ in range(processes)]
    turns = {}
    for text, shape in CHAINS:
        times = [[one.seconds(text, shape, 8, 16, 1) for one in both] for _ in range(rounds) for both in versions]
        old, new = (128 / min(column) for column in zip(*times, strict=True))
        turns[text] = {"before": old, "after": new, "share": new / old}
        print(text, turns[text], flush=True)
    return turns


def first_call(source: Path, text: str) -> float:
    """Wall-clock seconds of the first call of a kernel, in a new process with an empty cache."""
    script = (
        "import time, numpy as np, tangentless as tl, tangentless.backends.cpu.sweep\n"
        "X = np.random.default_rng(0).standard_normal((2, 32, 32, 3)); start = time.perf_counter()\n"
        f"tl.kernel({text!r})(X, backend='cpu'); print(time.perf_counter() - start)"
    )
    environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": tempfile.mkdtemp()}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the src folder of the version to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=3, help="processes of each version")
    parser.add_argument("--output", type=Path, default=Path("cpu_turns.json"))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    from tangentless import kernel
    from tangentless.timing import environment

    record: dict[str, object] = {**environment(), "unit": "pairs per processor second of one thread"}
    source = HERE.parent / "src"
    if options.before is not None:
        record["turns"] = take_turns((options.before, source), options.processes, options.rounds)
    after, rates = Version(source, tempfile.mkdtemp()), {}
    for name, text in GRAPHS.items():
        elements = kernel(text).graph((32, 32, 3)).elements
        rate = 64 / after.seconds(text, (32, 32, 3), 4, 16, options.rounds)
        rates[name] = {"architecture": text, "pairs": rate, "elements": rate * elements}
        rates[name]["share of myrtle5"] = rates[name]["elements"] / rates["myrtle5"]["elements"]
        print(name, rates[name], flush=True)
    record["graphs"] = rates
    record["first call, seconds"] = {text: first_call(source, text) for text in COLD}
    print(record["first call, seconds"], flush=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
