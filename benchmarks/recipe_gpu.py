"""Runs experiments on one GPU within a time limit: the recipe, the best kernel on many images, subsets, and tables.

    PYTHONPATH=src python benchmarks/recipe_gpu.py OUTPUT --data FOLDER --seconds 570 [--parts others,coates,...]

Every part is a command of `tangentless reproduce`. They run one after the other until the time is over; the one that
is then running is stopped. The same call resumes, since pieces and stores are kept in WORK. Records and pictures are
copied to OUTPUT, and records and pieces packed into OUTPUT/recipe_gpu.tgz. On another machine, `--resume` unpacks this
file, and finished pieces are not computed again. `--toy` runs everything at the smallest size, on any machine.

Kernel entries, in millions (an H200 computes 0.5 to 0.75 million a second):

    first     2,500 images, all ingredients: about 300      best     10,000 images, 10,000 tests, flips: 300
    others    5,000 images, other ingredients: about 900    large    20,000 images, 2,000 tests, flips: 480
    myrtle5   20,000 images, two rows, 2,000 tests: 480     subsets  20 × 1,280 images, 2,000 tests, flips: 135
    deeper    20,000 images, two rows, 2,000 tests: 480     mnist    20,000 images, 2,000 tests: 240
    flips     20,000 images, 2,000 tests: 480

The other parts take minutes: `classical`, `gabor` and `ckn` of MNIST, `gaussian` and `coates` of 50,000 images of
CIFAR-10, and `networks`, the convolutional kernel network of CIFAR-10.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from importlib.util import find_spec
from pathlib import Path

RESERVE = 15.0  # seconds kept for copies
# What the record of 5,000 images lacks, what tells most first. Left out is what lost 5 points from 2,500 images.
OTHERS = """tilt by leave-one-out; ridge 1e-3; ridge 1e-2; head gamma 0.5; head gamma 2; head gamma 4;
    + 1e-4 random patches; + 3e-4 random patches; + 1e-3 random patches; as the paper, without flips; as the paper;
    + myrtle5; + 0.5 myrtle5; + 2 myrtle5; depth 7; residuals; first patches 5×5; wide pools; 2 members, one of edges;
    averaging over shifts; shifts across, symmetrised; + myrtle10; depth 13; wider first patches;
    + wider first patches; gammas 1.15; gammas falling 1.5, 1, 0.5; three pools; epsilon 3e-4; epsilon 3e-5;
    4 draws, crops by 2; one pool; 4 draws, holes of 8; averaging over shifts by 2; more convolutions late"""
PARTS = {
    "first": "recipe --train 2500 --validation 2000 --record recipe-2500",
    "others": "recipe --train 5000 --validation 2000 --no-combine --record recipe-5000-others "
    f"--ingredients '{' '.join(OTHERS.split())}'",
    "subsets": "cifar10-subsets --kernels best --sizes 1280 --draws balanced --test 2000 --record cifar10-subsets-best",
    "mnist": "mnist --kernels myrtle5 --train 20000 --test 2000 --record mnist-20000",
    "flips": "cifar10 --kernels myrtle10-gaussian+flips --train 20000 --test 2000 --record cifar10-flips-20000",
    "myrtle5": "cifar10 --kernels myrtle5-no-zca,myrtle5 --train 20000 --test 2000 --record cifar10-myrtle5-20000",
    "deeper": "cifar10 --kernels myrtle7,myrtle10 --train 20000 --test 2000 --record cifar10-deeper-20000",
    "best": "cifar10 --kernels best --train 10000 --record cifar10-best-10000",
    "large": "cifar10 --kernels best --train 20000 --test 2000 --record cifar10-best-20000",
    "classical": "mnist --kernels gaussian,arc-cosine,ntk --train 30000 --record mnist-classical-30000",
    "gabor": "mnist --kernels gabor-gaussian --train 30000 --record mnist-gabor-gaussian-30000",
    "ckn": "mnist --kernels ckn --train 30000 --record mnist-ckn-30000",
    "gaussian": "cifar10 --kernels gaussian,gaussian-no-zca --train 50000 --record cifar10-gaussian-50000",
    "coates": "cifar10 --kernels coates-ng+flips --train 50000 --record cifar10-coates-50000",
    "networks": "cifar10 --kernels ckn --train 20000 --record cifar10-ckn-20000",
}
TOY = {
    "first": "recipe --train 20 --validation 10 --record recipe-20 --ingredients "
    "'tilt by leave-one-out;head gamma 2;+ myrtle5;averaging over shifts'",  # the cheap ones
    "best": "cifar10 --kernels best --train 30 --test 10 --record cifar10-best-30",
    "subsets": "cifar10-subsets --kernels best --sizes 20 --draws balanced --test 10 --trials 2 "
    "--record cifar10-subsets-best",
    "mnist": "mnist --kernels myrtle5 --train 20 --test 10 --record mnist-20",
}
STORED = ("recipe", *(["cifar10", "mnist"] if find_spec("zarr") else []))  # commands that keep matrices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--seconds", type=float, default=570.0)
    parser.add_argument(
        "--parts", default="", help=f"in this order: {', '.join(PARTS)}; first, best and subsets if none"
    )
    parser.add_argument("--work", type=Path, default=Path("out/recipe_gpu"), help="folder of pieces and stores")
    parser.add_argument("--resume", type=Path, help="recipe_gpu.tgz of an earlier call")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    ends = time.perf_counter() + options.seconds - RESERVE
    parts = TOY if options.toy else PARTS
    chosen = options.parts.split(",") if options.parts else ["first", "best", "subsets"]
    if unknown := [name for name in chosen if name not in parts]:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(parts)}")
    options.work.mkdir(parents=True, exist_ok=True)
    if options.resume is not None:
        with tarfile.open(options.resume) as archive:
            archive.extractall(options.work, filter="data")
    try:
        for name in chosen:
            if not run(shlex.split(parts[name]), options, ends):
                print(f"the time is over in {name}; the same call resumes", flush=True)
                break
    finally:
        keep(options.work, options.output)


def run(words: list[str], options: argparse.Namespace, ends: float) -> bool:
    """Run a command until it ends or the time is over; returns whether it succeeded."""
    common = ["--data", str(options.data), "--backend", options.backend, "--output", str(options.work)]
    stored = ["--store", str(options.work / "stores")] if words[0] in STORED else []
    command = [sys.executable, "-m", "tangentless", "reproduce", *words, *stored, *common]
    print(" ".join(command), flush=True)
    try:
        return subprocess.run(command, timeout=max(ends - time.perf_counter(), 1.0), check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def keep(work: Path, output: Path) -> None:
    """Copy records and pictures, and pack pieces; matrices stay."""
    output.mkdir(parents=True, exist_ok=True)
    for path in [*work.glob("*.json"), *work.glob("*.png")]:
        shutil.copy(path, output)
    with tarfile.open(output / "recipe_gpu.tgz", "w:gz") as archive:
        for path in [*work.glob("*.json"), *work.glob("pieces/*.json")]:
            archive.add(path, path.relative_to(work))


if __name__ == "__main__":
    main()
