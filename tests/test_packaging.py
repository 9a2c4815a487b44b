"""The files that describe the package agree: one version, one list of dependencies, and valid workflows."""

import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest

import tangentless as tl

ROOT = Path(__file__).parents[1]
yaml = pytest.importorskip("yaml", reason="comes with the tools of the tests")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"matplotlib": "matplotlib-base"}


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_every_public_name_is_there_and_says_how_it_is_called():
    assert set(tl.__all__) <= set(dir(tl))
    assert all(hasattr(tl, name) for name in tl.__all__)
    assert list(inspect.signature(tl.gram).parameters)[:4] == ["kernel", "X", "Z", "store"]


def test_there_is_one_version():
    assert PROJECT["dynamic"] == ["version"]
    assert read("CITATION.cff")["version"] == tl.__version__
    assert read("conda/recipe.yaml")["context"]["version"] == tl.__version__
    assert f"\n## {tl.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_conda_recipe_has_the_dependencies_of_the_wheel():
    wanted = [re.fullmatch(r"([\w-]+)>=([\d.]+)", one).groups() for one in PROJECT["dependencies"]]
    expected = {f"{CONDA_NAMES.get(name, name)} >={bound}" for name, bound in wanted}
    assert set(read("conda/recipe.yaml")["requirements"]["run"]) == expected | {f"python {PROJECT['requires-python']}"}


def test_extras_for_gpus_choose_one_cupy():
    extras = PROJECT["optional-dependencies"]
    assert extras["cuda"] == ["tangentless[cuda13]"]
    assert [extras[name][0].partition(">")[0] for name in ("cuda12", "cuda13")] == ["cupy-cuda12x", "cupy-cuda13x"]


def test_workflows_and_templates_are_read_and_run_what_there_is():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) | {"docs"}
    for path in sorted((ROOT / ".github").rglob("*.yml")):
        text, content = path.read_text(), yaml.safe_load(path.read_text())
        assert isinstance(content, dict), path
        assert set(re.findall(r"run: make ([\w-]+)", text)) <= targets
        assert all((ROOT / name).exists() for name in re.findall(r"python (tests/\S+)", text))


def test_the_oldest_versions_are_those_of_the_project():
    sys.path.insert(0, str(ROOT / "tests"))
    from installed import TESTS, lowest, requirements

    assert [lowest(one) for one in requirements()][:2] == ["numpy==2.0", "scipy==1.15"]
    assert all((ROOT / "tests" / f"test_{name}.py").exists() for name in TESTS)
