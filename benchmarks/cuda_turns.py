"""Compares speed and error of two versions of the package on one GPU, in turns; can run the GPU tests too.

    python benchmarks/cuda_turns.py --before out/before/src --images out/gpu/images.npz --output turns.json

Every measurement runs in a process of its own, and the two versions alternate, so that other work on the machine slows
both. Images are `raw` and `white` of the archive, and other kinds made from them or from random numbers. Errors are
those of the fused path against float64 on the same GPU; a few float64 entries are compared with the reference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ARCHITECTURES = ("myrtle10-gaussian", "myrtle10", "myrtle7", "myrtle5")
GENERAL = ("resnet8", "conv3 erf conv3(stride=2) gelu globalpool normalize relu")
SIDE = 528  # images of either side: 278,784 pairs in a turn
FEW = 8  # images of either side in comparisons
HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the src folder of the version to compare with")
    parser.add_argument("--after", type=Path, default=HERE.parent / "src", help="the src folder of this version")
    parser.add_argument("--images", type=Path, required=True, help="an archive with `raw` and `white`, (N, 32, 32, 3)")
    parser.add_argument("--output", type=Path, default=Path("turns.json"))
    parser.add_argument("--rounds", type=int, default=4, help="processes of each version")
    parser.add_argument("--turns", type=int, default=3, help="turns of each architecture in a process")
    parser.add_argument("--tests", action="store_true", help="run tests/test_cuda_gpu.py too")
    parser.add_argument("--work", choices=["time", "values", "general"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        sys.path.insert(0, str(options.after))
        work = {"time": time_blocks, "values": write_values, "general": time_general}[options.work]
        work(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    versions = {"after": options.after} | ({"before": options.before} if options.before else {})
    record: dict[str, Any] = {"rates": {}, "errors": {}, "general": {}, "tests": None}

    def save() -> None:
        options.output.write_text(json.dumps(record, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as scratch:
        files = {name: Path(scratch) / f"{name}.npz" for name in versions}
        for name, source in versions.items():
            run_worker(options, source, "values", files[name])
        record["errors"] = errors({name: dict(np.load(file)) for name, file in files.items()})
        save()
        measured: dict[str, list[Any]] = {name: [] for name in versions}
        for _ in range(options.rounds):
            for name, source in versions.items():
                file = Path(scratch) / "rates.json"
                run_worker(options, source, "time", file)
                measured[name].append(json.loads(file.read_text()))
            record["rates"] = rates(measured)
            save()
        file = Path(scratch) / "general.json"
        run_worker(options, options.after, "general", file)
        record["general"] = json.loads(file.read_text())
        save()
    if options.tests:
        record["tests"] = run_tests(options)
        save()
    print(json.dumps(record, indent=1))


def run_worker(options: argparse.Namespace, source: Path, work: str, output: Path) -> None:
    arguments = ["--after", str(source), "--images", str(options.images), "--output", str(output), "--work", work]
    command = [sys.executable, __file__, *arguments, "--turns", str(options.turns)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"{work} of {source}: {time.perf_counter() - started:.0f} s", flush=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}")


def run_tests(options: argparse.Namespace) -> dict[str, Any]:
    path = os.pathsep.join([str(options.after.resolve()), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/test_cuda_gpu.py"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, env=environment)
    log = options.output.with_suffix(".tests.log")
    log.write_text(done.stdout + done.stderr)
    return {"returncode": done.returncode, "tail": (done.stdout + done.stderr).splitlines()[-15:]}


def rates(measured: dict[str, list[Any]]) -> dict[str, Any]:
    """Pairs per second by architecture: median and best of all turns, and ratios of the two versions."""
    found: dict[str, Any] = {}
    for architecture in ARCHITECTURES:
        turns = {name: [rate for one in runs for rate in one[architecture]] for name, runs in measured.items()}
        medians = {name: statistics.median(some) for name, some in turns.items()}
        best = {f"best {name}": max(some) for name, some in turns.items()}
        found[architecture] = {**medians, **best}
        if "before" in medians:
            found[architecture]["share"] = medians["after"] / medians["before"]
            found[architecture]["share of best"] = best["best after"] / best["best before"]
    return found


def errors(values: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The largest relative errors of K and of 1 - K, by architecture and kind of images."""
    found: dict[str, Any] = {}
    for key, exact in values["after"].items():
        if not key.startswith("exact "):
            continue
        of_key = {}
        for name, arrays in values.items():
            error = np.abs(arrays[key.replace("exact ", "fused ")] - exact)
            of_key[name] = {
                "of K": float((error / exact).max()),
                "of 1 - K": float((error / np.maximum(1 - exact, 1e-12)).max()),
            }
        reference = values["after"].get(key.replace("exact ", "reference "))
        if reference is not None:
            part = exact[: len(reference), : len(reference)]
            of_key["float64 against the reference"] = float(np.abs(part / reference - 1).max())
        found[key.removeprefix("exact ")] = of_key
    return found


def kinds_of_images(archive: Any) -> dict[str, Any]:
    """2 × FEW images of every kind."""
    rng = np.random.default_rng(0)
    raw, white = (archive[name][: 2 * FEW].astype(np.float64) for name in ("raw", "white"))
    noise = rng.standard_normal(raw.shape)
    half = noise.copy()
    half[:, :16] = 0.0
    return {
        "raw": raw,
        "white": white,
        "centred": raw - raw.mean(axis=(1, 2, 3), keepdims=True),
        "flat": 0.5 + 0.01 * noise,
        "binary": (rng.random(raw.shape) < 0.5).astype(np.float64),
        "noise": noise,
        "half black": half,
    }


def block(k: Any, backend: Any, left: Any, right: Any) -> Any:
    return k.block(backend, k.prepare(backend, left), k.prepare(backend, right))


def write_values(options: argparse.Namespace) -> None:
    """Write entries of the fused path, of the same pairs in float64, and of a few pairs by the reference."""
    from tangentless.backends.cuda import CudaBackend
    from tangentless.kernel import kernel

    found = {}
    for kind, images in kinds_of_images(np.load(options.images)).items():
        for architecture in ARCHITECTURES:
            k = kernel(architecture)
            found[f"fused {architecture} {kind}"] = block(k, CudaBackend(), images[:FEW], images[FEW:])
            exact = CudaBackend(precision="float64")
            found[f"exact {architecture} {kind}"] = block(k, exact, images[:FEW], images[FEW:])
            if kind in ("raw", "white") and architecture in ("myrtle10-gaussian", "myrtle5"):
                few = images[:1], images[FEW : FEW + 1]
                found[f"reference {architecture} {kind}"] = k(*few, backend="reference")
    np.savez(options.output, **found)


def time_blocks(options: argparse.Namespace) -> None:
    """Write pairs per second of every turn, after compilation and preparation."""
    import cupy

    from tangentless.backends.cuda import CudaBackend
    from tangentless.kernel import kernel

    white = np.load(options.images)["white"]
    found = {}
    for architecture in ARCHITECTURES:
        k, backend = kernel(architecture), CudaBackend(gpus=(0,))
        left, right = (k.prepare(backend, some) for some in (white[:SIDE], white[SIDE : 2 * SIDE]))
        k.block(backend, left, right)
        found[architecture] = []
        for _ in range(options.turns):
            cupy.cuda.Device().synchronize()
            started = time.perf_counter()
            k.block(backend, left, right)
            cupy.cuda.Device().synchronize()
            found[architecture].append(SIDE * SIDE / (time.perf_counter() - started))
    options.output.write_text(json.dumps(found))


def time_general(options: argparse.Namespace) -> None:
    """Write pairs per second of the general path: in float64, of graphs that are not fused, and of tangent kernels."""
    from tangentless.backends.cuda import CudaBackend
    from tangentless.classical import ConvolutionalNTK
    from tangentless.kernel import kernel

    white = np.load(options.images)["white"][:64].astype(np.float64)
    cases = {f"{text} float64": (kernel(text), CudaBackend("float64")) for text in ("myrtle5", "myrtle10")}
    cases |= {text: (kernel(text), CudaBackend()) for text in GENERAL}
    cases |= {f"tangent of {text}": (ConvolutionalNTK(text), CudaBackend()) for text in ("myrtle5", "resnet8")}
    found = {}
    for name, (k, backend) in cases.items():
        left, right = (k.prepare(backend, some) for some in (white[:32], white[32:]))
        k.block(backend, left, right)
        started = time.perf_counter()
        k.block(backend, left, right)
        found[name] = 32 * 32 / (time.perf_counter() - started)
    options.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
