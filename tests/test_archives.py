"""Archives, the format of models and checkpoints: old ones open, and every defect of a file raises a typed error."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tangentless.errors import (
    ArchiveDamagedError,
    ArchiveError,
    ArchiveForeignError,
    ArchiveVersionError,
    InputError,
)
from tangentless.files import OutputError, load_archive, save_archive
from tangentless.models import FORMAT, VERSION, load_model
from tangentless.solve import solve_conjugate

OLD = Path(__file__).parent / "archives"
EXPECTED = np.load(OLD / "expected_0.1.0.npz")
ARRAYS = {"found": np.arange(6.0).reshape(2, 3), "names": np.array(["a", "é"]), "step": np.array(3)}


@pytest.fixture
def path(tmp_path):
    save_archive(tmp_path / "state.npz", "state", 2, {"done": [1, 2]}, ARRAYS)
    return tmp_path / "state.npz"


@pytest.mark.parametrize("name", ["pipeline", "regressor", "svc"])
def test_models_of_version_0_1_0_predict_what_they_did(name):
    model = load_model(OLD / f"{name}_0.1.0.npz", backend="reference")
    predict = model.predict if name == "regressor" else model.decision_function
    np.testing.assert_allclose(predict(EXPECTED["images"]), EXPECTED[name], rtol=0, atol=1e-10)
    assert (model[-1] if name == "pipeline" else model).precision_ == "float64"


def test_checkpoints_of_networks_of_version_0_1_0_go_on(tmp_path):
    torch = pytest.importorskip("torch")
    from tangentless.networks.checkpoint import CheckpointError, load_checkpoint, restore, save_checkpoint

    belongs_to, old = {"seed": 3, "recipe": {"epochs": 2}}, OLD / "network_0.1.0.npz"
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    state = load_checkpoint(old, belongs_to)
    assert state.history == [{"loss": 0.5}]
    restore(state, network, optimizer)
    np.testing.assert_array_equal(network.weight.detach(), EXPECTED["weight"])
    np.testing.assert_array_equal(optimizer.state[network.weight]["momentum_buffer"], EXPECTED["momentum"])
    with pytest.raises(CheckpointError, match="its seed is 3 and not 4"):
        load_checkpoint(old, belongs_to | {"seed": 4})
    save_checkpoint(tmp_path / "new.npz", belongs_to, state.history, network, optimizer)
    again = load_checkpoint(tmp_path / "new.npz", belongs_to)
    assert again.history == state.history
    assert again.arrays.keys() == state.arrays.keys()
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        load_checkpoint(OLD / "conjugate_0.1.0.npz", belongs_to)
    save_archive(tmp_path / "newer.npz", "tangentless checkpoint", 3, {}, {})
    with pytest.raises(CheckpointError, match="version 3, and this package reads up to version 2; update the package"):
        load_checkpoint(tmp_path / "newer.npz", belongs_to)


def test_checkpoints_of_conjugate_gradients_of_version_0_1_0_go_on(tmp_path):
    K = np.exp(-np.square(np.subtract.outer(np.arange(20.0), np.arange(20.0))) / 8)
    whole, steps = solve_conjugate(K, np.arange(20.0), 1e-3, landmarks=0), []
    place = shutil.copy(OLD / "conjugate_0.1.0.npz", tmp_path)
    options = {"landmarks": 0, "checkpoint": place, "progress": lambda step: steps.append(step.number)}
    found = solve_conjugate(K, np.arange(20.0), 1e-3, **options)
    assert steps[0] == 5  # the checkpoint holds four steps
    np.testing.assert_allclose(found.coefficients, whole.coefficients, rtol=1e-6)
    with pytest.raises(InputError, match="checkpoint of another system"):
        solve_conjugate(K, np.arange(20.0), 1e-2, landmarks=0, checkpoint=place)


def test_an_archive_comes_back_as_it_was(path):
    header, arrays = load_archive(path, "state", 2)
    assert (header["format"], header["version"], header["done"]) == ("state", 2, [1, 2])
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    assert [file.name for file in path.parent.iterdir()] == ["state.npz"]


def test_files_that_are_something_else_say_so(path, tmp_path):
    with pytest.raises(ArchiveForeignError, match=f"cannot read {path}: it is not a tangentless model"):
        load_model(path)
    other = tmp_path / "other.npz"
    np.savez(other, a=np.ones(3))
    with pytest.raises(ArchiveForeignError, match="it has no header, as every state has"):
        load_archive(other, "state", 2)
    np.savez_compressed(other, a=np.ones(3))
    with pytest.raises(ArchiveForeignError, match="compressed"):
        load_archive(other, "state", 2)
    other.write_bytes(b"{}")
    with pytest.raises(ArchiveForeignError, match=r"it is not a \.npz file"):
        load_archive(other, "state", 2)
    with pytest.raises(InputError, match="No such file"):
        load_archive(tmp_path / "nowhere.npz", "state", 2)


def test_newer_files_ask_for_a_newer_package(path, tmp_path):
    with pytest.raises(ArchiveVersionError, match="version 2, and this package reads up to version 1; update"):
        load_archive(path, "state", 1)
    save_archive(tmp_path / "model.npz", FORMAT, VERSION + 1, {}, {})
    with pytest.raises(ArchiveVersionError, match=f"tangentless model of version {VERSION + 1}"):
        load_model(tmp_path / "model.npz")


def test_any_length_that_is_cut_off_is_noticed(path):
    whole = path.read_bytes()
    for length in range(0, len(whole), 13):
        path.write_bytes(whole[:length])
        with pytest.raises(ArchiveError):
            load_archive(path, "state", 2)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArchiveDamagedError, match="damaged or cut short"):
        load_archive(path, "state", 2)


def test_a_changed_byte_is_noticed_or_changes_nothing(path):
    whole = path.read_bytes()
    noticed = 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            header, arrays = load_archive(path, "state", 2)
        except ArchiveError:
            noticed += 1
        else:
            assert header["done"] == [1, 2]
            assert all(np.array_equal(arrays[name], array) for name, array in ARRAYS.items())
    assert noticed > len(whole) // 7 * 0.8


def test_arrays_that_do_not_belong_to_the_header_are_noticed(path):
    with np.load(path) as members:
        arrays = dict(members)
    for change in ({"found": np.zeros((2, 3))}, {"extra": np.zeros(1)}, {"checksum": np.array("0" * 64)}):
        np.savez(path, **arrays | change)
        with pytest.raises(ArchiveDamagedError, match="checksum"):
            load_archive(path, "state", 2)


def test_a_file_that_cannot_be_written_leaves_the_old_one(path):
    before = path.read_bytes()
    with pytest.raises(OutputError, match="found would need pickling"):
        save_archive(path, "state", 2, {}, {"found": np.array([None])})
    with pytest.raises(TypeError):
        save_archive(path, "state", 2, {"done": object()}, {})
    assert path.read_bytes() == before
