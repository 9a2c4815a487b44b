"""Conjugate gradients on a stored matrix, in far less memory than it has: residual, peak memory, and a killed run.

Three processes run in turn. One computes the store, if there is none. One solves with a checkpoint and kills itself
after some steps. One resumes from the checkpoint, solves to the end, and writes the record. With --compare, a fourth
solves by Cholesky with the whole matrix in memory, and the predictions of both are compared.

    python benchmarks/solve_conjugate.py FOLDER [--rows 20000] [--landmarks 1000] [--compare]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from solve_cpu import resident
from tangentless.gram import gram, open_gram
from tangentless.solve import Step, solve_conjugate, solve_ridge
from tangentless.solve.spread import multiply
from tangentless.timing import environment

KERNEL = "normalize relu relu"
RIDGE, TOLERANCE, TARGETS = 1e-3, 1e-8, 10
KILLED_AFTER = 5  # steps
RECORD = "solve_conjugate.json"


def data(rows: int, features: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Points of ten clusters, (rows, features), and their one-hot labels."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, TARGETS, rows)
    centres = generator.standard_normal((TARGETS, features))
    return centres[labels] + generator.standard_normal((rows, features)), np.eye(TARGETS)[labels]


def put_record(folder: Path, report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=1)
    (folder / RECORD).write_text(text + "\n")
    print(text)


def make(folder: Path, rows: int) -> None:
    gram(KERNEL, data(rows)[0], store=folder / "k.zarr", tile=2048, progress=False)


def solve(folder: Path, rows: int, landmarks: int, *, dies: bool) -> None:
    K, Y = open_gram(folder / "k.zarr"), data(rows)[1]
    first: list[int] = []

    def watch(step: Step) -> None:
        first.append(step.number)
        print(f"step {step.number}: residual {step.residual:.1e}, {step.seconds:.0f} s, {step.seconds_left:.0f} s left")
        if dies and step.number >= KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)

    begun = time.monotonic()
    solution = solve_conjugate(
        K,
        Y,
        RIDGE,
        tolerance=TOLERANCE,
        landmarks=landmarks,
        checkpoint=folder / "run.npz",
        checkpoint_seconds=0,
        progress=watch,
    )
    np.save(folder / "coefficients.npy", solution.coefficients)
    command = f"python benchmarks/solve_conjugate.py FOLDER --rows {rows} --landmarks {landmarks} --compare"
    report = {
        "environment": {**environment(), "command": command},
        "rows": rows,
        "landmarks": landmarks,
        "matrix_gigabytes": 8 * rows**2 / 1e9,
        "resumed_at_step": first[0],
        "steps": solution.steps,
        "residual": solution.residual,
        "seconds": time.monotonic() - begun,
        "peak_gigabytes": resident(peak=True) / 1e9,
    }
    put_record(folder, report)


def compare(folder: Path, rows: int) -> None:
    K, Y = open_gram(folder / "k.zarr"), data(rows)[1]
    exact = multiply(K, solve_ridge(K, Y, RIDGE).coefficients)
    close = multiply(K, np.load(folder / "coefficients.npy"))
    report = json.loads((folder / RECORD).read_text())
    report["largest_difference_of_predictions_from_cholesky"] = float(np.abs(exact - close).max())
    report["share_of_equal_classes"] = float(np.mean(exact.argmax(axis=1) == close.argmax(axis=1)))
    put_record(folder, report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--landmarks", type=int, default=1000)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--part", choices=["make", "die", "solve", "compare"], help="run one of the four processes")
    options = parser.parse_args()
    folder, rows, landmarks = options.folder, options.rows, options.landmarks
    match options.part:
        case "make":
            make(folder, rows)
        case "die" | "solve":
            solve(folder, rows, landmarks, dies=options.part == "die")
        case "compare":
            compare(folder, rows)
        case None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "run.npz").unlink(missing_ok=True)
            for part in ("make", "die", "solve", *(["compare"] if options.compare else [])):
                ended = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--part", part], check=False)
                expected = -signal.SIGKILL if part == "die" else 0
                if ended.returncode != expected:
                    raise SystemExit(f"{part} ended with {ended.returncode}, not {expected}")


if __name__ == "__main__":
    main()
