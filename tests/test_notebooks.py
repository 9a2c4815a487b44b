"""What notebooks show: valid markup, every layer by name, the progress of a store; and texts of users are escaped."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import tangentless as tl
from conformance import CHAINS, GRAPHS
from tangentless.architecture import NAMED
from tangentless.classical import Gaussian
from tangentless.layers import ReLU, branches_of, walk
from tangentless.markup import escape, tag

HOSTILE = "<script>alert('1' & \"2\")</script>"


def texts(markup):
    """All text in the markup, which must be valid XML."""
    return [part.strip() for part in ET.fromstring(markup).itertext() if part.strip()]


def test_text_is_escaped_once_and_markup_never():
    assert ET.fromstring(tag("p", HOSTILE, title=HOSTILE)).attrib["title"] == HOSTILE
    inner = tag("b", HOSTILE)
    assert texts(tag("p", inner)) == [HOSTILE]
    assert escape(inner) is inner


def test_control_characters_do_not_break_a_page():
    assert texts(tag("p", "a\x00b\x1b\ud800c")) == ["a�b��c"]


@pytest.mark.parametrize("text", [*NAMED, *dict.fromkeys(text for text, _ in [*CHAINS, *GRAPHS])])
def test_the_picture_of_an_architecture_names_every_layer(text):
    architecture = tl.Architecture.of(text)
    title, *shown = texts(architecture._repr_svg_())
    assert title == str(architecture)
    layers = list(walk(architecture.layers))
    boxes = [str(layer) for layer in layers if not branches_of(layer)]
    assert [one for one in shown if one != "+" and not one.startswith("×")] == boxes
    assert shown.count("+") == len(layers) - len(boxes)


def test_the_picture_of_a_sum_shows_its_weights():
    shown = texts(tl.Architecture.parse("sum(0.5 * conv3 | relu) globalpool")._repr_svg_())
    assert {"× 0.5", "× 1"} <= set(shown)


def test_boxes_stay_inside_the_picture():
    root = ET.fromstring(tl.Architecture.parse("resnet14")._repr_svg_())
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        left, top, wide, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert left >= 0
        assert top >= 0
        assert left + wide <= width
        assert top + high <= height


def test_a_kernel_shows_its_expression_and_each_architecture_once():
    k = tl.kernel("myrtle5") + 0.5 * tl.kernel("conv3 relu globalpool") * Gaussian(0.1) + tl.kernel("myrtle5")
    shown = texts(k._repr_html_())
    assert shown[0] == repr(k)
    assert shown.count(str(tl.Architecture.parse("myrtle5"))) == 1
    assert Gaussian(0.1)._repr_html_().count("<svg") == 0


def test_names_of_layers_are_escaped():
    @dataclass(frozen=True)
    class Hostile(ReLU):
        name: ClassVar[str] = HOSTILE

        def __str__(self) -> str:
            return self.name

    assert HOSTILE in texts(tl.Architecture((Hostile(),))._repr_svg_())


def test_estimators_show_as_those_of_scikit_learn():
    model = tl.KernelRidgeClassifier(tl.kernel("myrtle5"), ridge=0.25)
    page = model._repr_html_()
    assert "sk-" in page
    assert "0.25" in page
    assert "myrtle5" in page


def test_a_store_shows_how_far_it_is(tmp_path):
    place = tmp_path / "<b>.zarr"
    K = tl.gram("normalize relu", np.eye(40), store=place, backend="reference", tile=16, progress=False)
    shown = texts(K._repr_html_())
    assert str(place) in " ".join(shown)
    assert "6 of 6, 100.0 %" in shown
    next(file for file in place.rglob("*") if file.is_file() and file.parts[-2:] == ("0", "1")).unlink()
    assert "5 of 6, 83.3 %" in texts(K._repr_html_())


def test_a_search_shows_all_trials_best_first():
    X = np.random.default_rng(0).standard_normal((60, 4))
    found = tl.search(["relu", "gaussian"], X, np.maximum(X[:, 0], 0), backend="reference")
    shown = texts(found._repr_html_())
    assert shown.index(repr(found.trials[0].kernel)) < shown.index(repr(found.trials[1].kernel))
