"""Run the test suite as other processors would: BLAS kernels of several kinds, vectors of 128, 256 and 512 bits.

    python tests/processors.py [--only NAME] [arguments of pytest]

OpenBLAS, NumPy, numba and PyTorch choose their machine code when they start, and environment variables change the
choice. Processors whose instructions this machine lacks are skipped, and the summary says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__  # there is no public name for them

SSE = ("sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16")
AVX2 = (*SSE, "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
AVX512 = (*AVX2, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class Processor:
    """A processor to imitate."""

    name: str
    blas: str  # OpenBLAS's name of its kernels
    bits: int
    numba: str  # LLVM's name of a processor
    features: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OPENBLAS_CORETYPE": self.blas,
            "NUMBA_CPU_NAME": self.numba,
            "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in self.features),
            "NPY_DISABLE_CPU_FEATURES": " ".join(_disabled_in_numpy(self.bits)),
            "ATEN_CPU_CAPABILITY": {128: "default", 256: "avx2", 512: "avx512"}[self.bits],
            "ONEDNN_MAX_CPU_ISA": {128: "SSE41", 256: "AVX2", 512: "AVX512_CORE"}[self.bits],
        }


PROCESSORS = (
    Processor("nehalem", "Nehalem", 128, "nehalem", SSE),
    Processor("sandybridge", "Sandybridge", 128, "sandybridge", (*SSE, "avx")),
    Processor("haswell", "Haswell", 256, "haswell", AVX2),
    Processor("skylake", "SkylakeX", 512, "skylake-avx512", AVX512),
)


def _disabled_in_numpy(bits: int) -> list[str]:
    """The instruction sets that NumPy would use here and must not, to imitate vectors of so many bits."""
    kept = {128: (), 256: ("X86_V3", "AVX2", "FMA3"), 512: tuple(__cpu_dispatch__)}[bits]
    return [name for name in __cpu_dispatch__ if __cpu_features__.get(name) and name not in kept]


def run(processor: Processor, arguments: list[str]) -> str:
    """Run the suite; returns the outcome as text."""
    present = {name for name, has in llvm.get_host_cpu_features().items() if has}
    if missing := set(processor.features) - present:
        return f"skipped: this processor has no {', '.join(sorted(missing))}"
    with tempfile.TemporaryDirectory() as cache:  # numba's cache holds code for one processor
        environment = {**os.environ, **processor.environment, "NUMBA_CACHE_DIR": cache}
        start = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-m", "not slow and not gpu", "-p", "no:cacheprovider", *arguments]
        ended = subprocess.run(command, env=environment, cwd=Path(__file__).parents[1])
    return f"{'passed' if ended.returncode == 0 else 'FAILED'} in {time.monotonic() - start:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[processor.name for processor in PROCESSORS], action="append")
    chosen, arguments = parser.parse_known_args()
    outcomes = {}
    for processor in PROCESSORS:
        if not chosen.only or processor.name in chosen.only:
            print(f"== {processor.name}: {processor.bits} bits, OpenBLAS for {processor.blas}", flush=True)
            outcomes[processor.name] = run(processor, arguments)
    print(*(f"{name:12} {outcome}" for name, outcome in outcomes.items()), sep="\n")
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
