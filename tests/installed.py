"""Build wheel and sdist, install the wheel in a new environment outside the source tree, and run tests against it.

    python tests/installed.py [--bare] [--lowest] [--keep FOLDER] [--tests FILE ...]

The wheel built from the sdist must equal that built from the tree. `--bare` installs no extras, such as PyTorch; tests
that need them are skipped. `--lowest` installs the oldest versions that pyproject.toml allows.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BARE = ("pytest", "pytest-xdist", "hypothesis")
# Tests that show that a package is complete: every layer, backend and command, data files, models and stores.
TESTS = [
    "answers",
    "archives",
    "backends",
    "bags",
    "cli",
    "datasets",
    "datasets_folders",
    "doctor",
    "estimators",
    "estimators_input",
    "gram_store",
    "graph_goldens",
    "kernel",
    "kernel_contract",
    "layers",
    "models",
    "models_damage",
    "portable",
    "preprocessing",
    "progress",
    "ridge",
    "searching",
]


def run(*words: object, **options: object) -> None:
    print("$", *words, flush=True)
    subprocess.run([str(word) for word in words], check=True, **options)


def requirements() -> list[str]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]


def lowest(requirement: str) -> str:
    """The oldest version that a requirement allows.

    >>> lowest("numpy>=2.0")
    'numpy==2.0'
    """
    name, bound = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement).groups()
    return f"{name}=={bound}"


def make_environment(folder: Path) -> Path:
    """Make a virtual environment; returns its interpreter."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def build(folder: Path) -> Path:
    """Build and check wheel and sdist; returns the wheel."""
    python, again = make_environment(folder / "builder"), folder / "again"
    run(python, "-m", "pip", "install", "--quiet", "build")
    run(python, "-m", "build", "--outdir", folder / "dist", ROOT)  # the sdist, and the wheel from it
    run(python, "-m", "build", "--wheel", "--outdir", again, ROOT)  # the wheel from the tree
    (wheel,), (other,) = (folder / "dist").glob("*.whl"), again.glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    check_contents(wheel, other, sdist)
    return wheel


def check_contents(wheel: Path, other: Path, sdist: Path) -> None:
    """Check that both wheels are equal and hold all files of the package, device code and tables included."""
    source = ROOT / "src" / "tangentless"
    files = {f"tangentless/{path.relative_to(source).as_posix()}" for path in source.rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name}
    contents = []
    for path in (wheel, other):
        with zipfile.ZipFile(path) as archive:
            contents.append({member.filename: member.CRC for member in archive.infolist()})
    assert contents[0] == contents[1], "the wheel from the sdist is not the wheel from the tree"
    packed = {name for name in contents[0] if name.startswith("tangentless/")}
    assert packed == expected, sorted(packed ^ expected)
    kinds = {Path(name).suffix for name in packed}
    assert kinds >= {".py", ".cu", ".cuh", ".csv", ".json", ".typed"}, kinds
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "tests/installed.py"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", action="store_true", help="without the extras")
    parser.add_argument("--lowest", action="store_true", help="with the oldest dependencies that are allowed")
    parser.add_argument("--keep", type=Path, help="copy wheel and sdist to this folder")
    parser.add_argument("--tests", nargs="+", default=TESTS, help=f"by default {' '.join(TESTS)}")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wheel = build(folder)
        if chosen.keep is not None:
            shutil.copytree(folder / "dist", chosen.keep, dirs_exist_ok=True)
        python = make_environment(folder / "environment")
        wanted = [str(wheel), *BARE] if chosen.bare else [f"{wheel}[test]"]
        pinned = [lowest(one) for one in requirements()] if chosen.lowest else []
        run(python, "-m", "pip", "install", "--quiet", *wanted, *pinned)
        shutil.copytree(ROOT / "tests", folder / "away" / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        away = {"cwd": folder / "away", "env": environment}
        where = (
            "import tangentless, sys; print(tangentless.__file__); assert tangentless.__file__.startswith(sys.prefix)"
        )
        run(python, "-c", where, **away)
        run(python, "-m", "tangentless", "doctor", **away)
        files = [f"tests/test_{name}.py" for name in chosen.tests]
        unknown = ("-W", "ignore::pytest.PytestUnknownMarkWarning")  # pyproject.toml, which names them, is not there
        run(python, "-m", "pytest", "-q", "-m", "not slow and not gpu", *unknown, "-n", 2, *files, **away)


if __name__ == "__main__":
    sys.exit(main())
