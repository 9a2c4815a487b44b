"""Training: recipes are followed, and a killed run that is resumed ends with the bits of an undisturbed run."""

import functools
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from conftest import Terminal
from tangentless.errors import InputError, ParameterError
from tangentless.files import OutputError, load_archive, save_archive

torch = pytest.importorskip("torch", reason="networks need PyTorch: pip install 'tangentless[networks]'")
from crash import trainer  # noqa: E402 (only where PyTorch is)
from tangentless import datasets, networks  # noqa: E402
from tangentless.networks import RECIPES, Machine, Ramp, Recipe, Steps, network_of, train  # noqa: E402
from tangentless.networks.checkpoint import FORMAT, VERSION, CheckpointError, load_checkpoint, restore, save_checkpoint  # noqa: E402
from tangentless.networks.training import (  # noqa: E402
    DivergedError,
    TorchDraws,
    loss_of,
)
from tangentless.preprocessing.augmentation import random_crops, random_flips, random_holes  # noqa: E402

CPU = Machine("cpu")
SUMS = "conv3 residual(normalize gelu conv3) relu sum(pool2 | conv3(stride=2)) relu globalpool normalize relu"
SMALL = Recipe("digits", "conv3 relu pool2 conv3 relu globalpool normalize relu", 24, 12, batch=32, learning_rate=2.0)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def relabel(split, label):
    """The first two images, with the labels 0 and `label`."""
    return datasets.Split(split.images[:2], np.array([0, label]))


def fit(recipe, split, seed=0, machine=CPU, **options):
    network = network_of(recipe, split.images.shape[1:], 10, seed)
    return train(network, split.images / 16, split.labels, recipe, seed=seed, machine=machine, **options)


@pytest.mark.parametrize(
    "recipe",
    [
        SMALL,
        SMALL.change(loss="cross-entropy", learning_rate=0.1, batch_norm=True),
        SMALL.change(architecture="resnet8", width=8, loss="cross-entropy", learning_rate=0.02, batch_norm=True),
        SMALL.change(loss="squares", optimizer="adam", learning_rate=0.01, weight_decay=0.0),
    ],
    ids=lambda recipe: f"{recipe.loss}-{recipe.optimizer}-{recipe.width}",
)
def test_networks_learn_digits(recipe, digits):
    some = digits.train.take(slice(400))
    training = fit(recipe, some, test=(digits.test.images / 16, digits.test.labels), test_every=6)
    assert training.complete
    assert training.test_accuracy > 0.6  # 0.1 would be chance
    assert training.history[-1].loss < 0.8 * training.history[0].loss
    assert [epoch.test_accuracy is not None for epoch in training.history] == [False] * 5 + [True] + [False] * 5 + [
        True
    ]
    predicted = networks.predict(training.network, digits.test.images / 16)
    assert np.mean(predicted == digits.test.labels) == pytest.approx(training.test_accuracy)


@pytest.mark.parametrize("baseline", [networks.LeNet5, networks.ResNet32])
def test_baselines_train_by_recipes_too(baseline, digits):
    some = digits.train.take(slice(64))
    images = np.pad(some.images, ((0, 0), (4, 4), (4, 4), (0, 0))) / 16
    recipe = SMALL.change(epochs=4, learning_rate=0.02, loss="cross-entropy", batch=16)
    training = train(baseline(10, shape=(16, 16, 1)), images, some.labels, recipe, machine=CPU)
    assert training.history[-1].loss < training.history[0].loss


def test_same_seed_same_weights_and_another_seed_others(digits):
    some, recipe = digits.train.take(slice(64)), SMALL.change(epochs=2, flips=True, crop=1, cutout=2)
    first, again, other = (fit(recipe, some, seed=seed).network.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["linear.weight"], other["linear.weight"])


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    whole = trainer.run(None)
    checkpoint = tmp_path / "state.npz"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, trainer.__file__, str(checkpoint)], env=environment)
    assert ended.returncode == -signal.SIGKILL
    resumed = trainer.run(checkpoint)
    assert set(resumed) == set(whole)
    assert all(np.array_equal(resumed[name], whole[name]) for name in whole)


def test_a_run_stopped_by_the_clock_goes_on_to_the_same_bits(tmp_path):
    whole, checkpoint = trainer.run(None), tmp_path / "state.npz"
    for _ in range(trainer.RECIPE.epochs):
        state = trainer.run(checkpoint, stop_after=0.0)  # one epoch at a time
    assert all(np.array_equal(state[name], whole[name]) for name in whole)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_restored_moments_lie_in_memory_as_their_weights_do(kind, tmp_path):
    def make():
        network = network_of(SMALL, (8, 8, 1), 10).to(memory_format=torch.channels_last)
        return network, kind(network.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))

    (network, optimizer), (other, restored) = make(), make()
    network(torch.randn(4, 8, 8, 1)).square().sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "state.npz", {}, [], network, optimizer)
    restore(load_checkpoint(tmp_path / "state.npz", {}), other, restored)
    for ours, theirs in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for name, value in optimizer.state[ours].items():
            assert torch.equal(restored.state[theirs][name], value)
            assert restored.state[theirs][name].stride() in (theirs.stride(), ())


def test_checkpoints_of_other_runs_are_refused(tmp_path, digits):
    some, checkpoint = digits.train.take(slice(32)), tmp_path / "state.npz"
    recipe = SMALL.change(epochs=1)
    fit(recipe, some, checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match=r"its epochs is 1 and not 2"):
        fit(recipe.change(epochs=2), some, checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match="its seed is 0 and not 4"):
        fit(recipe, some, seed=4, checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match="its data is"):
        fit(recipe, digits.train.take(slice(32, 64)), checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match="its precision is 'float32' and not 'bfloat16'"):
        fit(recipe, some, checkpoint=checkpoint, machine=Machine("cpu", "bfloat16"))
    with pytest.raises(CheckpointError, match="its test is None and not"):
        fit(recipe, some, checkpoint=checkpoint, test=(some.images / 16, some.labels))
    other = networks.network_of(
        recipe.change(architecture=recipe.architecture.replace("relu", "leakyrelu(0.1)")), (8, 8, 1), 10
    )
    with pytest.raises(CheckpointError, match="its layers is"):
        train(other, some.images / 16, some.labels, recipe, checkpoint=checkpoint, machine=CPU)
    header, arrays = load_archive(checkpoint, FORMAT, VERSION)
    name = next(name for name in arrays if name.startswith("network/"))
    for wrong in (arrays[name][..., :0], None):
        save_archive(checkpoint, FORMAT, VERSION, header, {**arrays, name: wrong} if wrong is not None else {})
        with pytest.raises(CheckpointError, match="is not whole"):
            fit(recipe, some, checkpoint=checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        fit(recipe, some, checkpoint=checkpoint)


def test_checkpoints_that_cannot_be_written_are_refused_before_training(tmp_path, digits):
    some = digits.train.take(slice(32))
    with pytest.raises(OutputError, match=r"there is no folder .*nowhere"):
        fit(SMALL, some, checkpoint=tmp_path / "nowhere" / "state.npz")
    fit(SMALL.change(epochs=1), some, checkpoint=str(tmp_path / "state.npz"))  # a str names a file too
    assert (tmp_path / "state.npz").exists()


def test_losses_are_what_their_names_say():
    scores, labels = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 2.0]]), torch.tensor([0, 1])
    total = 0.25 + 1 + 4
    recipes = {loss: SMALL.change(loss=loss, batch=4) for loss in ("mse", "squares", "cross-entropy")}
    assert loss_of(scores, labels, recipes["mse"]).item() == pytest.approx(total / 6)
    assert loss_of(scores, labels, recipes["squares"]).item() == pytest.approx(total / 4)
    by_hand = -torch.log_softmax(scores, dim=1)[[0, 1], [0, 1]].mean()
    assert loss_of(scores, labels, recipes["cross-entropy"]).item() == pytest.approx(by_hand.item())


def test_learning_rates_follow_the_schedule(digits):
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, *arguments):
            rates.append(self.param_groups[0]["lr"])
            return super().step(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "SGD", Watched)
        fit(SMALL.change(epochs=3, batch=16, schedule=Steps((1, 2), 0.5)), digits.train.take(slice(32)))
    np.testing.assert_allclose(rates, [2.0, 2.0, 1.0, 1.0, 0.5, 0.5])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_flips_leave_or_mirror_each_image():
    images = torch.arange(200 * 6.0).reshape(200, 2, 3, 1)
    flipped = random_flips(images, TorchDraws(generator()))
    mirrored = [torch.equal(a, b.flip(1)) for a, b in zip(flipped, images, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(flipped, images, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 70 < sum(mirrored) < 130


def test_crops_move_each_image_and_bring_in_zeros():
    images = torch.randn(50, 5, 6, 2)
    cropped = random_crops(images, 2, TorchDraws(generator()))
    padded = torch.nn.functional.pad(images, (0, 0, 2, 2, 2, 2))
    found = set()
    for image, whole in zip(cropped, padded, strict=True):
        places = [(i, j) for i in range(5) for j in range(5) if torch.equal(image, whole[i : i + 5, j : j + 6])]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) > 15


def test_holes_are_squares_of_zeros_around_any_pixel():
    holes = random_holes(torch.ones(300, 8, 8, 2), 4, TorchDraws(generator())) == 0
    areas = holes[..., 0].sum(dim=(1, 2))
    assert torch.equal(holes[..., 0], holes[..., 1])
    assert set(areas.tolist()) <= {a * b for a in (2, 3, 4) for b in (2, 3, 4)}
    assert areas.max() == 16
    assert holes.any(dim=0).all()


def test_recipes_of_the_paper_build():
    shapes = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3), "cifar100": (32, 32, 3)}
    for recipe in RECIPES.values():
        narrow = 4 if isinstance(recipe.width, int) else (4, 4, 4, 4)
        network = network_of(recipe.change(width=narrow), shapes[recipe.data], 10)
        assert network(torch.zeros(1, *shapes[recipe.data])).shape == (1, 10)
        assert any("batch_norm" in name for name in network.state_dict()) == recipe.batch_norm


def test_recipes_are_those_of_the_appendix():
    plain, deep = RECIPES["cifar10-myrtle5"], RECIPES["cifar10-myrtle10-flips"]
    assert (plain.width, plain.epochs, plain.learning_rate, plain.schedule) == (1024, 60, 0.1, Steps((15, 30, 45), 0.1))
    assert (plain.loss, plain.momentum, plain.weight_decay, plain.batch) == ("mse", 0.9, 5e-4, 128)
    assert (deep.epochs, deep.learning_rate, deep.schedule, deep.flips) == (200, 0.05, Steps((80, 120, 160), 0.1), True)
    hundred = RECIPES["cifar100-myrtle10-bn"]
    assert (hundred.width, hundred.loss, hundred.schedule) == (2048, "cross-entropy", Steps((60, 120, 160), 0.2))
    assert RECIPES["mnist-myrtle5"].optimizer == "adam"
    assert RECIPES["subset-bn-1280"].paper == 61.94


def test_divergence_is_an_error(digits):
    recipe = SMALL.change(architecture="conv3 relu conv3 relu globalpool", learning_rate=1e12, epochs=5)
    with pytest.raises(DivergedError, match="learning rate below 1e\\+12"):
        fit(recipe, digits.train.take(slice(64)))


@pytest.mark.parametrize("mode", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("architecture", [SMALL.architecture, SUMS])
def test_precisions_agree_within_theirs(architecture, mode, digits):
    some, recipe = digits.train.take(slice(64)), SMALL.change(architecture=architecture, epochs=1, learning_rate=0.05)
    exact = fit(recipe, some).history[0].loss
    network = network_of(recipe, (8, 8, 1), 10)
    found = train(network, some.images / 16, some.labels, recipe, machine=Machine("cpu", mode))
    assert found.precision == mode
    assert found.history[0].loss == pytest.approx(exact, rel=1e-6 if mode == "float32" else 0.02)


def test_half_precision_has_16_bits_throughout_and_resumes(digits, tmp_path):
    some, recipe, half = (
        digits.train.take(slice(48)),
        SMALL.change(epochs=3, batch_norm=True),
        Machine("cpu", "float16"),
    )
    whole = fit(recipe, some, machine=half)
    assert whole.precision == "float16"
    kinds = {name: value.dtype for name, value in whole.network.state_dict().items() if "num_batches" not in name}
    assert {kinds.pop(name) for name in list(kinds) if "batch_norm" in name} == {torch.float32}
    assert set(kinds.values()) == {torch.float16}
    fit(recipe, some, checkpoint=tmp_path / "half", stop_after=0.0, machine=half)
    resumed = fit(recipe, some, checkpoint=tmp_path / "half", machine=half)
    assert [epoch.loss for epoch in resumed.history] == [epoch.loss for epoch in whole.history]
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, resumed.network.state_dict()[name])
    predicted = networks.predict(whole.network, some.images / 16)
    assert set(predicted) <= set(range(10))
    train(whole.network, some.images / 16, some.labels, recipe, machine=Machine("cpu", "float32"))
    assert {weight.dtype for weight in whole.network.parameters()} == {torch.float32}  # the run before left float16


def test_gradients_too_small_for_half_precision_vanish(digits):
    """There is neither loss scaling nor a float32 copy of the weights, which would keep them."""
    some = digits.train.take(slice(32))
    recipe = SMALL.change(epochs=1, output_scale=1e-7, learning_rate=1e4, weight_decay=0.0)
    moved = {}
    for mode in ("float32", "float16"):
        before = network_of(recipe, (8, 8, 1), 10).weights()[0].clone()
        after = fit(recipe, some, machine=Machine("cpu", mode)).network.weights()[0]
        moved[mode] = not torch.equal(before.to(after.dtype), after)
    assert moved == {"float32": True, "float16": False}


@pytest.mark.parametrize("kind", ["network", "LeNet5", "ResNet32"])
def test_scores_are_taken_in_float32_in_mixed_precision_too(kind):
    shape = (16, 16, 1)
    network = network_of(SMALL, shape, 10) if kind == "network" else getattr(networks, kind)(10, shape=shape)
    last = [module for module in network.modules() if isinstance(module, torch.nn.Linear)][-1]
    seen = []
    last.register_forward_hook(lambda layer, given, scores: seen.append((given[0].double(), scores)))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        network(torch.randn(4, 16, 16, 1))
    ((features, scores),) = seen
    exact = features @ last.weight.double().T + (0 if last.bias is None else last.bias.double())
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=1e-6)  # bfloat16 would have errors of 4e-3


def test_every_network_is_compiled_once(digits, monkeypatch):
    """For the full batch size only: not for the last batch, nor for tests, and not again for another seed."""
    compiled = []

    def keep(graph, inputs):
        compiled.append(graph)
        return graph.forward

    compile_with = functools.partial(torch.compile, backend=keep)
    monkeypatch.setattr(torch, "compile", lambda function, mode, dynamic: compile_with(function, dynamic=dynamic))
    some, tests = digits.train.take(slice(72)), (np.resize(digits.test.images, (600, 8, 8, 1)) / 16, np.zeros(600, int))
    shapes = [f"conv{1 + 2 * (i % 3)} relu pool{2 ** (i // 3)} conv3 relu globalpool" for i in range(9)]
    for number, shape in enumerate(shapes, start=1):
        recipe = SMALL.change(architecture=shape, width=2, epochs=2, learning_rate=0.01)
        for seed in range(2):
            network = network_of(recipe, (8, 8, 1), 10, seed)
            train(network, some.images / 16, some.labels, recipe, test=tests, machine=Machine("cpu", compile="default"))
        assert len(compiled) == number


@pytest.mark.slow  # compiles C++
@pytest.mark.parametrize("change", [{"batch_norm": True}, {"architecture": SUMS}], ids=str)
def test_compiled_networks_learn_the_same(change, digits):
    some, recipe = digits.train.take(slice(72)), SMALL.change(width=4, epochs=2, learning_rate=0.05, **change)
    losses = []
    for mode in ("off", "default"):
        network = network_of(recipe, (8, 8, 1), 10)
        training = train(network, some.images / 16, some.labels, recipe, machine=Machine("cpu", compile=mode))
        losses.append([epoch.loss for epoch in training.history])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda s: Machine("cpu", "float8"), ParameterError, "one of auto, float32, bfloat16, float16"),
        (lambda s: Machine("cpu", compile="fast"), ParameterError, "one of auto, off"),
        (lambda s: Machine("cuda:7").resolve(), ParameterError, "no device 'cuda:7'"),
        (lambda s: train(None, s.images[:3], s.labels[:2], SMALL, machine=CPU), InputError, "one for each of the 3"),
        (lambda s: train(None, s.images[:0], s.labels[:0], SMALL, machine=CPU), InputError, "there are no images"),
        (lambda s: fit(SMALL, s.take(slice(4)), test_every=0), ParameterError, "test_every must be a whole"),
        (lambda s: fit(SMALL, s.take(slice(4)), seed=-1), ParameterError, "seed must be a whole number from 0"),
        (lambda s: fit(SMALL, s.take(slice(4)), test=s.images), InputError, "test must be a pair"),
        (lambda s: train(None, s.images[:2], s.labels[:2], "mnist-myrtle5"), ParameterError, "recipe must be a Recipe"),
        (lambda s: train(None, [[0], [1, 2]], [0, 1], SMALL, machine=CPU), InputError, "different shapes"),
        (lambda s: train(None, ["a", "b"], [0, 1], SMALL, machine=CPU), InputError, "images must be numbers"),
        (lambda s: networks.predict(None, s.images, precision="half"), ParameterError, "precision must be one of auto"),
        (lambda s: fit(SMALL, relabel(s, 10)), InputError, "labels run from 0 to 10, but the network has 10 outputs"),
        (lambda s: fit(SMALL, relabel(s, -1)), InputError, "labels run from -1 to 0"),
        (lambda s: fit(SMALL, relabel(s, 9), test=(s.images[:2], [3, 11])), InputError, "labels run from 3 to 11"),
        (lambda s: networks.predict(network_of(SMALL, (8, 8, 1), 10), s.images[:0]), InputError, "no images"),
        (lambda s: train(None, s.images[:2] * np.nan, s.labels[:2], SMALL, machine=CPU), InputError, "NaN"),
        (lambda s: SMALL.change(loss="hinge"), ParameterError, "loss must be one of"),
        (lambda s: SMALL.change(epochs=1.5), ParameterError, "epochs must be a whole number of at least 1"),
        (lambda s: SMALL.change(batch="32"), ParameterError, "batch must be a whole number of at least 1"),
        (lambda s: SMALL.change(width=(8, 0)), ParameterError, "width 2 must be a whole number of at least 1"),
        (lambda s: SMALL.change(images=0), ParameterError, "images must be a whole number of at least 1"),
        (lambda s: SMALL.change(crop=-1), ParameterError, "crop must be a whole number of at least 0"),
        (lambda s: SMALL.change(learning_rate="fast"), ParameterError, "learning_rate must be a number above 0"),
        (lambda s: SMALL.change(schedule=0.1), ParameterError, r"schedule must be Steps\(...\) or Ramp"),
        (lambda s: SMALL.change(speed=1), ParameterError, "a field of a recipe"),
        (lambda s: SMALL.change(learning_rate=np.inf), ParameterError, "learning_rate must be a number above 0"),
        (lambda s: SMALL.change(momentum=1.0), ParameterError, "momentum must be from 0 to below 1"),
        (lambda s: SMALL.change(batch_norm="no"), ParameterError, "batch_norm must be True or False"),
        (lambda s: Steps(5), ParameterError, "milestones must be a list of epochs"),
        (lambda s: Steps((5, "b")), ParameterError, "milestones must be a list of epochs"),
        (lambda s: Steps(factor=-2), ParameterError, "factor must be a number above 0"),
        (lambda s: Ramp(2.0), ParameterError, "rise must be a share"),
        (lambda s: network_of(SMALL, (8, 8, 1), 10, seed=1.5), ParameterError, "seed must be a whole number from 0"),
        (lambda s: Machine(None), ParameterError, "device must be a name"),
        (lambda s: fit(SMALL, s.take(slice(4)), machine="cpu"), ParameterError, "machine must be a Machine"),
        (lambda s: fit(SMALL, s.take(slice(4)), stop_after="a"), ParameterError, "stop_after must be a number"),
        (lambda s: fit(SMALL, s.take(slice(4)), checkpoint=3), ParameterError, "checkpoint must be the name of a file"),
        (lambda s: fit(SMALL, s.take(slice(4)), test=5), InputError, "test must be a pair"),
        (
            lambda s: train("myrtle5", s.images[:4], s.labels[:4], SMALL, machine=CPU),
            ParameterError,
            "a PyTorch module",
        ),
        (
            lambda s: fit(SMALL.change(optimizer="adam"), s.take(slice(4)), machine=Machine("cpu", "float16")),
            ParameterError,
            "adam divides by them; use bfloat16, or sgd",
        ),
    ],
)
def test_wrong_arguments_are_refused(wrong, error, message, digits):
    with pytest.raises(error, match=message):
        wrong(digits.train)


def test_numbers_of_numpy_are_numbers_of_json_in_a_recipe():
    changes = {"epochs": np.int64(2), "width": [np.int32(4), 8], "learning_rate": np.float32(0.5)}
    recipe = SMALL.change(schedule=Steps([np.float64(1.0)]), **changes)
    assert json.loads(json.dumps(recipe.to_json()))["width"] == [4, 8]
    assert hash(recipe) == hash(recipe.change())


def test_bar_shows_loss_and_accuracy_on_a_terminal_only(digits, monkeypatch):
    shown = {}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr("tangentless.progress.REFRESH", 0.0)
        fit(SMALL.change(epochs=2, width=2), digits.train.take(slice(16)))
        shown[type(stream)] = stream.getvalue()
    assert re.search(r"loss [\d.]+  accuracy [\d.]+ %", shown[Terminal])
    assert shown[io.StringIO] == ""


def test_bar_moves_on_though_every_epoch_is_short(digits, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("tangentless.progress.REFRESH", 20.0)
    clock = itertools.count(100.0)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))  # every call is a second later
    training = fit(SMALL.change(epochs=60, width=2), digits.train.take(slice(16)))
    assert max(epoch.seconds for epoch in training.history[1:]) < 20.0
    assert "loss" in stream.getvalue()


def test_without_pytorch_an_error_says_what_to_install():
    hidden = "import sys; sys.modules['torch'] = None\n"
    works = "import tangentless as tl, tangentless.networks as n; assert n.RECIPES; tl.kernel('myrtle5')\n"
    fails = "tl.Architecture.parse('myrtle5').to_torch(8, 10)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", hidden + works + fails]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    last = ended.stderr.strip().splitlines()[-1]
    assert last == "tangentless.errors.BackendError: networks need PyTorch: pip install 'tangentless[networks]'"


def test_nothing_else_imports_pytorch():
    source = "import sys, tangentless.cli, tangentless.networks, tangentless.estimators; print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
