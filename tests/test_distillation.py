"""Distillation: learned images are better, stopped runs continue, and bad input is refused."""

import numpy as np
import pytest

import tangentless as tl
from conftest import frozen
from shell import run
from tangentless import demo, distillation
from tangentless.distillation import FORMAT, VERSION, Settings, best_targets, distill, kernel_gradients
from tangentless.errors import InputError, ParameterError
from tangentless.experiments.distillation import reproduce
from tangentless.files import OutputError, load_archive, save_archive
from tangentless.models import load_model, save_model
from toys import toy

KERNEL = "conv3 relu pool2 conv3 relu globalpool normalize relu"


@pytest.fixture(scope="module")
def digits():
    split = demo.load_digits(seed=0)
    few = np.isin(split.train_labels, (0, 1, 2))
    others = np.isin(split.test_labels, (0, 1, 2))
    parts = split.train_images[few], split.train_labels[few], split.test_images[others], split.test_labels[others]
    return tuple(frozen(one) for one in parts)


def test_gradients_of_the_loss_are_slopes():
    rng = np.random.default_rng(0)
    root, cross, targets, batch = (rng.standard_normal(shape) for shape in ((4, 6), (4, 5), (4, 3), (5, 3)))
    K = root @ root.T
    _, *found = kernel_gradients(K, cross, targets, batch, 0.01)
    moves = [rng.standard_normal(one.shape) for one in (K, cross)]

    def loss(s):
        moved = (one + s * move for one, move in zip((K, cross), moves, strict=True))
        return kernel_gradients(*moved, targets, batch, 0.01)[0]

    expected = (8 * (loss(1e-4) - loss(-1e-4)) - loss(2e-4) + loss(-2e-4)) / 12e-4
    assert sum((by * move).sum() for by, move in zip(found, moves, strict=True)) == pytest.approx(expected, rel=1e-8)


def test_the_loss_of_the_best_targets_has_the_slope_of_fixed_ones():
    rng = np.random.default_rng(0)
    root, cross, move, batch = (rng.standard_normal(shape) for shape in ((4, 6), (4, 50), (4, 50), (50, 3)))
    K = root @ root.T

    def step(s):
        moved = cross + s * move
        return kernel_gradients(K, moved, best_targets(K, moved, batch, 0.01), batch, 0.01)

    (higher, *_), (lower, *_), (loss, _, by_cross) = (step(s) for s in (1e-4, -1e-4, 0.0))
    # The targets are fitted with a ridge of 1e-12, so the loss is not exactly at its minimum.
    assert (by_cross * move).sum() == pytest.approx((higher - lower) / 2e-4, rel=1e-5)
    other = best_targets(K, cross, batch, 0.01) + 1e-2 * rng.standard_normal((4, 3))
    assert loss < kernel_gradients(K, cross, other, batch, 0.01)[0]


def test_targets_fit_as_least_squares_do_where_kernels_hardly_differ():
    rng = np.random.default_rng(0)
    cross, batch = 1 - 1e-3 * rng.random((10, 200)), rng.standard_normal((200, 3))
    loss, *_ = kernel_gradients(np.eye(10), cross, best_targets(np.eye(10), cross, batch, 1e-6), batch, 1e-6)
    least = np.linalg.lstsq(cross.T, batch, rcond=None)[0]
    assert loss == pytest.approx(((cross.T @ least - batch) ** 2).sum() / 400, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"learn_labels": True}, {"start": "noise"}, {"flips": True}], ids=str)
def test_learned_images_classify_better_than_those_they_were(digits, options):
    X, y, test, labels = digits
    settings = {"steps": 25, "batch": 60, "rate": 0.05, "backend": "cpu", **options}
    found = distill(X, y, 3, KERNEL, **settings)
    before = tl.KernelRidgeClassifier(KERNEL, backend="cpu").fit(found.before, found.labels).score(test, labels)
    assert found.images.shape == (3, 8, 8, 1)
    assert sorted(found.labels) == [0, 1, 2]
    assert found.losses[-1] < found.losses[0]
    assert found.model.score(test, labels) > before


def test_a_distilled_model_is_saved_and_predicts_the_same(digits, tmp_path):
    X, y, test, _ = digits
    found = distill(X, y, 3, KERNEL, steps=2, batch=30, learn_labels=True, preprocessing=tl.ZCA(), backend="cpu")
    save_model(tmp_path / "model.npz", found.model)
    again = load_model(tmp_path / "model.npz", backend="cpu")
    assert np.array_equal(again.predict_proba(test), found.model.predict_proba(test))


def test_a_run_goes_on_where_it_was(digits, tmp_path):
    X, y, *_ = digits
    settings = {"steps": 5, "batch": 20, "backend": "cpu", "learn_labels": True, "flips": True}

    def stop(done, total, loss):
        if done == 3:
            raise KeyboardInterrupt

    whole = distill(X, y, 3, KERNEL, **settings)
    with pytest.raises(KeyboardInterrupt):
        distill(X, y, 3, KERNEL, checkpoint=tmp_path / "run", watch=stop, **settings)
    seen = []
    found = distill(X, y, 3, KERNEL, checkpoint=tmp_path / "run", watch=lambda *at: seen.append(at[0]), **settings)
    assert seen == [4, 5]
    assert np.array_equal(found.images, whole.images)
    assert np.array_equal(found.targets, whole.targets)
    with pytest.raises(InputError, match="a distillation of another seed"):
        distill(X, y, 3, KERNEL, checkpoint=tmp_path / "run", **settings | {"seed": 1})
    with pytest.raises(InputError, match="a distillation of other labels"):
        distill(X, y[::-1], 3, KERNEL, checkpoint=tmp_path / "run", **settings)
    header, arrays = load_archive(tmp_path / "run", FORMAT, VERSION)
    header = {name: header[name] for name in ("settings", "kernel", "data")}
    save_archive(tmp_path / "run", FORMAT, VERSION, header, arrays)  # as files were before they knew their labels
    assert np.array_equal(distill(X, y, 3, KERNEL, checkpoint=tmp_path / "run", **settings).images, whole.images)
    save_archive(tmp_path / "run", FORMAT, 1, header, {name: arrays[name] for name in ("before", "losses")})
    with pytest.raises(InputError, match="earlier release"):
        distill(X, y, 3, KERNEL, checkpoint=tmp_path / "run", **settings)


def test_checkpoints_are_written_as_time_goes_by_and_before_the_first_step(digits, tmp_path, monkeypatch):
    X, y, *_ = digits
    monkeypatch.setattr(distillation, "_KEPT_EVERY", 0.0)
    kept = []

    def look(done, total, loss):
        kept.append(len(load_archive(tmp_path / "run", FORMAT, VERSION)[1]["losses"]))

    settings = {"steps": np.int64(2), "flips": np.bool_(True), "batch": 20}  # numbers of NumPy are written too
    distill(X, y, 3, KERNEL, checkpoint=tmp_path / "run", watch=look, backend="cpu", **settings)
    assert kept == [1, 2]
    with pytest.raises(OutputError, match="cannot write"):
        distill(X, y, 3, KERNEL, checkpoint=tmp_path / "no" / "run", watch=look, steps=2, batch=20, backend="cpu")
    assert len(kept) == 2


def test_a_run_whose_time_is_up_goes_on_where_it_was(digits, tmp_path):
    X, y, *_ = digits
    settings = {"steps": 3, "batch": 20, "backend": "cpu"}
    whole = distill(X, y, 3, KERNEL, **settings)
    parts = [distill(X, y, 3, KERNEL, checkpoint=tmp_path / "run", seconds=1e-9, **settings) for _ in range(3)]
    assert [len(part.losses) for part in parts] == [1, 2, 3]  # every call does one step
    assert np.array_equal(parts[-1].images, whole.images)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seconds": 0.0}, ParameterError, "seconds must be a finite number above 0"),
        ({"seconds": "5"}, ParameterError, "seconds must be a finite number above 0, not '5'"),
        ({"images": 41}, ParameterError, "41 images cannot be distilled from 40"),
        ({"images": 2}, ParameterError, "3 classes need at least as many images"),
        ({"batch": 2}, ParameterError, "a batch of 2 cannot hold 3 classes"),
        ({"batch": 5, "learn_labels": True}, ParameterError, "labels of 3 images takes a batch of at least 6"),
        ({"images": 30, "learn_labels": True}, ParameterError, "takes 60 training images, not 40"),
        ({"steps": 0}, ParameterError, "steps must be a whole number from 1"),
        ({"rate": 0.0}, ParameterError, "rate must be a finite number above 0"),
        ({"rate": "much"}, ParameterError, "rate must be a finite number above 0"),
        ({"start": "nothing"}, ParameterError, "'images' or 'noise'"),
        ({"flips": "yes"}, ParameterError, "flips must be True or False, not 'yes'"),
        ({"preprocessing": "zca"}, ParameterError, "a transformer, such as tl.ZCA"),
        ({"rates": 0.1}, ParameterError, "no setting rates; did you mean 'rate'"),
        ({"y": np.zeros(40)}, InputError, "one class"),
        ({"y": [0, None] * 20}, InputError, "y contains None in row 1"),
        ({"y": np.zeros(3)}, InputError, "one label per image"),
        ({"X": np.full((40, 8, 8, 1), np.nan)}, InputError, "NaN"),
        ({"X": np.eye(40), "kernel": "relu", "flips": True}, InputError, "vectors have no mirror image"),
    ],
)
def test_what_cannot_be_distilled_is_refused(digits, changes, error, message):
    X, y, *_ = digits
    arguments = {"X": X[:40], "y": y[:40], "images": 3, "kernel": KERNEL, "backend": "cpu", **changes}
    with pytest.raises(error, match=message):
        distill(**arguments)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_data_sets_are_distilled_to_model_picture_and_record(name, tmp_path):
    data = toy(side=8, channels=1 if name == "mnist" else 3, name=name)
    settings = Settings(images=4, steps=3, batch=20)
    how = {"kernel": KERNEL, "epsilon": 1e-4, "folder": tmp_path, "backend": "cpu"}
    with pytest.raises(ParameterError, match="there are 30 test images, and 31 are asked for"):
        reproduce(data, settings, test=31, **how)
    record = reproduce(data, settings, test=20, **how)
    assert {path.name for path in tmp_path.glob(f"distillation-{name}-4.*")} == {
        f"distillation-{name}-4.{suffix}" for suffix in ("checkpoint", "json", "npz", "png")
    }
    model = load_model(tmp_path / f"distillation-{name}-4.npz", backend="cpu")
    assert model.score(data.test.images[:20], data.test.labels[:20]) == record["accuracy"]["distilled"]
    assert record["steps"] == 3


def test_the_demonstration_distils_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "DISTILLATION_STEPS", 3)
    result = run("demo", "distill", "-o", tmp_path, "--kernel", KERNEL)
    assert result.exit_code == 0, result.output
    assert "as learned" in result.output
    assert (tmp_path / "distilled.png").exists()
    assert run("demo", "nothing").exit_code != 0
