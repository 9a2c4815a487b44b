"""The Python blocks of README.md and docs/ run, on tiny data, and links between the pages lead somewhere.

The blocks of a page share their variables, as if typed one after the other. A block that cannot run here has
a comment above it: `<!-- not run: why -->`.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import tangentless as tl
from tangentless.classical import Gaussian
from tangentless.layers import LAYERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: .* -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def blocks_of(page):
    """(line number, source) of each block that runs."""
    text = page.read_text()
    return [
        (text.count("\n", 0, match.start(2)), match.group(2)) for match in BLOCK.finditer(text) if not match.group(1)
    ]


def images(count):
    return np.random.default_rng(count).standard_normal((count, 8, 8, 3))


def names_for_images():
    X, y = images(8), np.arange(8) % 2
    return {"X": X, "y": y, "Z": images(3), "X_test": images(4), "X_train": X, "images": X, "labels": y}


def names_for_solving():
    """A store of 1,000 rows, under the name that the page uses."""
    rng = np.random.default_rng(0)
    X, k = rng.standard_normal((1000, 5)), Gaussian(0.1)
    tl.gram(k, X, store="cifar10.zarr", progress=False)
    labels = rng.integers(0, 10, 1000)
    return {"X": X, "k": k, "K": k(X[:50]), "labels": labels[:50], "Y": np.eye(10)[labels], "new": X[:3]}


def names_for_data():
    """A folder of photographs of two classes, and a folder of new ones."""
    from PIL import Image

    for folder in ("photos/cat", "photos/dog", "photos-new"):
        Path(folder).mkdir(parents=True)
        Image.new("RGB", (40, 30), "red").save(Path(folder, "one.png"))
    Path("report.html").touch()  # of the command `fit`, on the same page
    return names_for_images()


def names_for_networks():
    return {"X": np.random.default_rng(0).standard_normal((2, 32, 32, 3))}


def names_for_gradients():
    names, rng = names_for_images(), np.random.default_rng(0)
    X, Z = names["X"], names["Z"]
    k = tl.kernel("conv3 relu globalpool")
    return {**names, "k": k, "G": rng.random((len(X), len(Z))), "S": rng.random((len(X), len(X)))}


def names_for_uncertainty():
    """Images, kernels among them, and the first digits of scikit-learn as vectors."""
    from sklearn.datasets import load_digits

    pytest.importorskip("gpytorch", reason="GPyTorch is an extra")
    vectors, labels = load_digits(return_X_y=True)
    X, more, rng = images(20), images(3), np.random.default_rng(0)
    X_test, K = rng.standard_normal((4, 8, 8, 3)), Gaussian(0.1)(rng.standard_normal((12, 3)))
    names = {"X": X, "Y": X.mean(axis=(1, 2)), "y": np.arange(20) % 2, "X_test": X_test, "y_test": np.arange(4) % 2}
    names |= {"X_more": more, "Y_more": more.mean(axis=(1, 2))}
    names |= {"vectors": vectors[:200] / 16, "labels": labels[:200]}
    return names | {"K": K[:9, :9], "C": K[9:, :9], "S": K[9:, 9:], "d": K.diagonal()[9:], "T": rng.random((9, 2))}


NAMES = {
    "gradients.md": names_for_gradients,
    "uncertainty.md": names_for_uncertainty,
    "solving.md": names_for_solving,
    "data.md": names_for_data,
    "first-five-minutes.md": names_for_data,
    "networks.md": names_for_networks,
}


@pytest.fixture(autouse=True)
def _forget_layers():
    """Forget the layers that a page registers when its test ends."""
    known = dict(LAYERS)
    yield
    LAYERS.clear()
    LAYERS.update(known)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    if page.name == "networks.md":
        pytest.importorskip("torch", reason="PyTorch is an extra")
    monkeypatch.chdir(tmp_path)
    names = {"np": np, "tl": tl, "__name__": "page", **NAMES.get(page.name, names_for_images)()}
    for line, source in blocks_of(page):
        code = compile("\n" * line + source, str(page), "exec", dont_inherit=True)  # for line numbers in errors
        exec(code, names)


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / "benchmarks").rglob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
