"""Reports: one small file that loads nothing else, shows the right numbers, and never runs texts of users."""

import json
import re
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline

import tangentless as tl
from shell import run
from tangentless.errors import InputError, ParameterError
from tangentless.experiments.records import Outcome, Run, View, report_outcome
from tangentless.files import OutputError
from tangentless.report.encoding import make_sprite, pack_matrix, picture_values
from tangentless.report.fits import Data, gather
from tangentless.solve import ridge_path

HOSTILE = "</script><script>alert('x')</script>\u2028<!--"
TEXT = "conv3 relu globalpool normalize relu"
DIGITS = load_digits()
IMAGES, LABELS = (DIGITS.images[:120, ..., None] / 16).astype(np.float32), DIGITS.target[:120] % 3
ROWS = IMAGES.reshape(120, -1)  # for fast kernels of vectors; IMAGES are shown
KERNEL = tl.classical.Gaussian(1.0)
FEW, FEW_LABELS = IMAGES[:16, ::2, ::2], LABELS[:16]  # small, for kernels of images


class Parsed(HTMLParser):
    """A parsed page: ids, attributes that could load something, and the texts of scripts by id."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.addresses, self.scripts, self.words, self._inside = [], [], {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.addresses += [found[name] for name in ("src", "href") if name in found]
        if tag in ("script", "style"):
            self._inside = found.get("id", tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.words.append(data)
        else:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    @property
    def data(self):
        return json.loads(self.scripts["data"])


def fitted(labels=LABELS, **options):
    return tl.KernelRidgeClassifier(KERNEL, backend="cpu", **options).fit(ROWS, labels)


def write(path, model, labels=LABELS, **options):
    return tl.write_report(path, model, ROWS, labels, images=IMAGES, **options)


def numbers(model, labels=LABELS, limit=2000):
    return gather(model, Data.of(ROWS, labels, IMAGES, "training"), None, None, limit)


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture(scope="module")
def fit(model):
    return numbers(model)


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "r.html"
    assert write(path, model, test=(ROWS[:9], LABELS[:9]), test_images=IMAGES[:9]) == path
    return Parsed(path.read_text())


# What it shows


def test_a_report_has_every_section(page):
    sections = {"matrix", "neighbours", "confusion", "examples", "curves", "about"}
    assert sections <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    for words in ("Learning curve", "Ridge path", "Reliability", "Hardest", "Most typical", "Labels to check"):
        assert words in page.text
    assert f"tangentless {tl.__version__}" in page.text
    assert repr(KERNEL) in page.text


def test_a_report_loads_nothing_else(page):
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "http" not in page.scripts["style"]
    assert not re.search(r"https?://(?!www\.w3\.org)", " ".join(page.scripts.values()))


def test_numbers_are_those_of_the_model(model, fit):
    everything = fit.everything
    assert np.array_equal(fit.estimator.classes_[everything.guess], model.loo_predictions_)
    assert np.mean(everything.guess == everything.truth) == model.loo_score_
    assert everything.own.max() <= 1
    assert fit.calibration.accuracy == pytest.approx(model.loo_score_)
    K = KERNEL(ROWS)
    assert np.array_equal(fit.K, K)
    assert fit.path.best("accuracy") == ridge_path(K, np.eye(3)[LABELS]).best("accuracy")
    assert fit.curve.x[-1] == len(IMAGES)
    assert fit.curve.y[-1] == pytest.approx(model.loo_score_)
    distances = K.diagonal()[:, None] + K.diagonal() - 2 * K
    assert distances[5, fit.neighbours[5]] == pytest.approx(np.sort(distances[5])[1:13], abs=1e-12)


def test_examples_are_the_worst_and_the_best(fit):
    own, truth = fit.everything.own, fit.everything.truth
    assert fit.examples.hardest[0] == own.argmin()
    assert np.all(np.diff(own[fit.examples.hardest]) >= 0)
    assert set(truth[fit.examples.typical]) == {0, 1, 2}
    for code in range(3):
        assert own[truth == code].max() in own[fit.examples.typical]


def test_a_wrong_label_is_a_suspect():
    labels = LABELS.copy()
    labels[7] = (labels[7] + 1) % 3
    fit = numbers(fitted(labels), labels)
    assert 7 in fit.examples.suspects
    assert fit.examples.suspected >= 1


def test_two_classes_have_probabilities_too():
    fit = numbers(fitted(LABELS > 0), LABELS > 0)
    assert fit.classes == ("False", "True")
    assert np.all(fit.everything.sure >= 0.5)
    assert np.array_equal(fit.everything.guess == 1, fit.estimator.loo_predictions_)


def test_large_sets_are_sampled_and_the_report_says_so(model, tmp_path):
    page = Parsed(write(tmp_path / "r.html", model, limit=40).read_text())
    data = page.data
    assert data["matrix"]["count"] == len(data["neighbours"]) == 40
    assert "40 of 120 training rows, drawn at random" in page.text
    assert 40 < len(data["items"]["row"]) <= 120
    hardest = int(np.argmin(numbers(model, limit=40).everything.own))
    assert hardest in data["items"]["row"]


def test_numbers_have_a_report_without_classes(tmp_path):
    y = IMAGES.mean(axis=(1, 2, 3))
    model = tl.KernelRidgeRegressor(KERNEL).fit(ROWS, y)
    page = Parsed(write(tmp_path / "r.html", model, y).read_text())
    assert "predictions" in page.ids
    assert "confusion" not in page.ids
    assert page.data["classes"] == []


def test_rows_that_are_no_images_have_no_pictures(model, tmp_path):
    page = Parsed(tl.write_report(tmp_path / "r.html", model, ROWS, LABELS).read_text())
    assert page.data["columns"] is None
    assert f"row {numbers(model).everything.own.argmin()}" in page.text  # the hardest row


def test_a_pipeline_shows_the_images_before_its_whitening(tmp_path):
    model = make_pipeline(tl.Standardize(), tl.KernelRidgeClassifier(TEXT, backend="reference"))
    with model[-1].keeping_matrix() as kept:
        model.fit(FEW, FEW_LABELS)
    again = gather(model, Data.of(FEW, FEW_LABELS, None, "training"), None, None, 2000)
    assert np.array_equal(again.K, kept[0])
    assert np.array_equal(again.images, FEW)
    assert "Standardize" in tl.write_report(tmp_path / "r.html", model, FEW, FEW_LABELS).read_text()


def test_the_matrix_of_a_store_is_not_computed_again(tmp_path, monkeypatch):
    model = fitted(store=tmp_path / "k.zarr")
    monkeypatch.setattr(type(model.kernel_), "__call__", None)
    assert write(tmp_path / "r.html", model).exists()


def test_many_classes_show_those_with_the_most_mistakes(tmp_path):
    labels = np.arange(120) % 30
    page = Parsed(write(tmp_path / "r.html", fitted(labels), labels).read_text())
    assert "20 classes with the most mistakes, of 30" in page.text


# What users wrote


def test_names_of_classes_are_shown_and_never_run(tmp_path):
    names = np.array([HOSTILE, "{{title}}", "a & b"])[LABELS]
    text = write(tmp_path / "r.html", fitted(names), names, title=HOSTILE).read_text()
    page = Parsed(text)
    assert page.data["classes"] == sorted(set(names))
    assert text.count("<script") == 3
    assert set(page.scripts) == {"style", "data", "matrix-values", "script"}
    assert "alert('x')" not in page.scripts["script"]
    assert "{{title}}" in page.text
    assert " ".join(HOSTILE.split()) in page.text


# How large it is


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3), (20, 90, 3), (7, 5, 2)])
def test_pictures_lie_where_the_page_looks_for_them(shape, rng):
    images = rng.integers(0, 256, (30, *shape), dtype=np.uint8)
    pictures = picture_values(images)
    sprite = make_sprite(pictures)
    sheet = np.asarray(Image.open(BytesIO(b64decode(sprite.url.partition(",")[2]))))
    assert sheet.shape[:2] == (sprite.rows * sprite.cell_height, sprite.columns * sprite.cell_width)
    place = 17
    top, left = place // sprite.columns * sprite.cell_height, place % sprite.columns * sprite.cell_width
    cut = sheet[top : top + sprite.height, left : left + sprite.width]
    if pictures.shape[1:3] == cut.shape[:2]:
        assert np.array_equal(cut, pictures[place])
    assert cut.shape[:2] == (sprite.height, sprite.width)


def test_pictures_and_matrices_stay_within_their_budgets(rng):
    pictures = rng.integers(0, 256, (400, 32, 32, 3), dtype=np.uint8)
    assert len(make_sprite(pictures, budget=300_000).url) <= 400_100
    K = rng.random((300, 300))
    packed = pack_matrix((K + K.T) / 2, budget=60_000)
    assert packed.bits < 16
    assert len(b64decode(packed.text)) <= 60_000


@pytest.mark.parametrize("budget", [10**6, 60_000])
def test_a_packed_matrix_reads_back_within_the_error_it_states(budget, rng):
    K = rng.random((200, 200))
    K = K + K.T
    packed = pack_matrix(K, budget)
    planes = np.frombuffer(zlib.decompress(b64decode(packed.text)), np.uint8).astype(int)
    entries = 200 * 199 // 2
    codes = planes if packed.bits == 8 else 256 * planes[:entries] + planes[entries:]
    error = np.abs(packed.low + packed.step * codes - K[np.triu_indices(200, 1)])
    assert error.max() <= packed.error * (1 + 1e-9)


@pytest.mark.parametrize("K", [np.ones((2, 2)), np.ones((1, 1)), np.zeros((3, 3))])
def test_a_matrix_of_one_value_is_packed_too(K):
    assert np.isfinite([pack_matrix(K).low, pack_matrix(K).step]).all()


# What is refused


def test_a_report_is_never_overwritten_unasked(model, tmp_path):
    path = tmp_path / "r.html"
    path.write_text("mine")
    with pytest.raises(OutputError, match="force=True"):
        tl.write_report(path, model, ROWS, LABELS)
    assert path.read_text() == "mine"
    tl.write_report(path, model, ROWS, LABELS, force=True)
    assert path.read_text() != "mine"


@pytest.mark.parametrize("name", ["nowhere/r.html", "."])
def test_a_place_that_cannot_be_written_is_refused(name, model, tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        tl.write_report(tmp_path / name, model, ROWS, LABELS)


def test_what_has_no_leave_one_out_is_refused(tmp_path):
    path = tmp_path / "r.html"
    with pytest.raises(ParameterError, match="KernelSVC does not have"):
        tl.write_report(path, tl.KernelSVC(TEXT), IMAGES, LABELS)
    with pytest.raises(ParameterError, match="not fitted yet"):
        tl.write_report(path, tl.KernelRidgeClassifier(TEXT), IMAGES, LABELS)
    with pytest.raises(ParameterError, match="training data"):
        tl.write_report(path, fitted())
    assert not path.exists()


def test_data_that_do_not_belong_together_are_refused(model, tmp_path):
    path = tmp_path / "r.html"
    with pytest.raises(InputError, match="fitted to 120 rows"):
        tl.write_report(path, model, ROWS[:50], LABELS[:50])
    with pytest.raises(InputError, match="labels have shape"):
        tl.write_report(path, model, ROWS, LABELS[:50])
    with pytest.raises(InputError, match="120 × 120"):
        tl.write_report(path, model, ROWS, LABELS, matrix=np.eye(7))
    with pytest.raises(InputError, match="model has no class"):
        tl.write_report(path, model, ROWS, LABELS, test=(ROWS, LABELS + 1))
    with pytest.raises(ParameterError, match="limit"):
        tl.write_report(path, model, ROWS, LABELS, limit=0)
    assert not path.exists()


# Commands


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "x.npy", FEW)
    np.save(tmp_path / "y.npy", FEW_LABELS)
    return tmp_path


def test_fit_writes_a_report_and_does_not_overwrite_one(files):
    report = files / "r.html"
    command = ["fit", TEXT, files / "x.npy", files / "y.npy", "--output", files / "m.npz", "--report", report]
    command += ["--backend", "reference", "--patch", 2]
    outcome = run(*command)
    assert outcome.exit_code == 0, outcome.output
    assert str(report) in outcome.output
    assert Parsed(report.read_text()).data["matrix"]["count"] == 16
    (files / "m.npz").unlink()
    outcome = run(*command)
    assert outcome.exit_code == 2
    assert "--force" in outcome.output
    assert not (files / "m.npz").exists()  # refused before anything is computed


def test_search_writes_a_report(files):
    report = files / "r.html"
    outcome = run(
        "search",
        files / "x.npy",
        files / "y.npy",
        TEXT,
        "conv3 erf globalpool",
        "--report",
        report,
        "--backend",
        "reference",
    )
    assert outcome.exit_code == 0, outcome.output
    page = Parsed(report.read_text())
    assert "conv3 erf globalpool" in page.text
    assert "trials" in page.ids


def test_bench_writes_a_report(tmp_path):
    report = tmp_path / "r.html"
    outcome = run("bench", TEXT, "--shape", "4,4,1", "--seconds", 0.02, "--backend", "reference", "--report", report)
    assert outcome.exit_code == 0, outcome.output
    assert {"pairs/s", TEXT} <= set(Parsed(report.read_text()).words)


def test_demo_writes_a_report_of_digits_only(tmp_path):
    outcome = run("demo", "distill", "--output", tmp_path, "--report", tmp_path / "r.html")
    assert outcome.exit_code == 2
    assert "digits" in outcome.output


def test_commands_refuse_a_report_that_cannot_be_written_before_they_start(tmp_path):
    report = ["--report", tmp_path / "nowhere" / "r.html"]
    for command in (["demo"], ["bench"], ["compare"], ["reproduce", "mnist"], ["reproduce", "uci"]):
        outcome = run(*command, *report)
        assert outcome.exit_code == 2, command
        assert "there is no folder" in outcome.output


def test_the_report_of_an_experiment_has_its_table_and_its_pictures(tmp_path):
    def draw(rows, folder):
        Path(folder, "one.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
        Path(folder, "one.png").write_bytes(b"")
        return [folder / "one.png", folder / "one.svg"]

    view = View("Sums <of> rows", ("name", "sum"), lambda row: (row["name"], str(row["sum"])), draw)
    outcome = Run("sums", tmp_path, configuration={"terms": 3}, data={}).conduct([{"name": HOSTILE, "sum": 3}], view)
    report_outcome(tmp_path / "r.html", outcome)
    page = Parsed((tmp_path / "r.html").read_text())
    assert "Sums <of> rows" in page.text
    assert "terms 3" in page.text
    pictures = [address for address in page.addresses if address.startswith("data:image")]
    assert len(pictures) == 1
    assert "svg" in pictures[0]


def test_an_unfinished_experiment_has_no_report(tmp_path):
    view = View("t", (), lambda row: ())
    report_outcome(tmp_path / "r.html", Outcome([], view, unfinished="no time"))
    report_outcome(None, Outcome([], view))
    assert not (tmp_path / "r.html").exists()
