"""Tables in the layout of Fernández-Delgado et al.: what is read, noted and refused."""

import io
import os
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tangentless.datasets import tables
from tangentless.datasets.tables import find_tables, known_tables, read_table, unpack
from tangentless.errors import DatasetDamagedError, DatasetMissingError

REAL = Path(os.environ.get("TANGENTLESS_DATA", "no-data")) / "uci"


def write_table(folder, name="toy", rows=40, classes=2, seed=0, features=None, labels=None):
    """Write a toy table as published: columns separated by tabs, and splits as lists of row numbers."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % classes if labels is None else np.asarray(labels)
    rows = len(labels)
    features = random.standard_normal((rows, 3)) + 2 * labels[:, None] if features is None else features
    place = folder / name
    place.mkdir(parents=True)
    header = "\t" + "\t".join(f"f{k + 1}" for k in range(features.shape[1])) + "\tclase"
    lines = [f"{i + 1}\t" + "\t".join(f"{x:.6g}" for x in features[i]) + f"\t{labels[i]}" for i in range(rows)]
    (place / f"{name}_R.dat").write_text("\n".join([header, *lines]) + "\n")
    (place / f"{name}.txt").write_text(
        f"n_entradas= {features.shape[1]}\nn_clases= {len(set(labels.tolist()))}\nn_arquivos= 1\n"
        f"fich1= {name}_R.dat\nn_patrons1= {rows}\n"
    )
    (place / "conxuntos.dat").write_text(split_text(random, rows, 1, 0.5))
    (place / "conxuntos_kfold.dat").write_text(split_text(random, rows, 4, 0.75))
    return place


def split_text(random, rows, count, share):
    lines = []
    for _ in range(count):
        order = random.permutation(rows)
        cut = round(share * rows)
        lines += [" ".join(map(str, np.sort(part))) for part in (order[:cut], order[cut:])]
    return "\n".join(lines) + "\n"


def test_table_is_read_with_its_splits(tmp_path):
    write_table(tmp_path, rows=40, classes=3)
    table = read_table("toy", tmp_path)
    assert table.features.shape == (40, 3)
    assert (len(table), table.classes, len(table.folds), table.notes) == (40, 3, 4, ())
    assert (len(table.tuning.train), len(table.tuning.test)) == (20, 20)
    assert all((len(fold.train), len(fold.test)) == (30, 10) for fold in table.folds)


def test_constant_features_and_lonely_classes_are_kept_and_noted(tmp_path):
    labels = [0, 1] * 20 + [2]
    features = np.random.default_rng(0).standard_normal((41, 3))
    features[:, 1] = 5.0
    write_table(tmp_path, labels=labels, features=features)
    table = read_table("toy", tmp_path)
    assert table.features.shape == (41, 3)
    assert table.classes == 3
    assert "1 constant feature," in table.notes[0]
    assert "1 class of one row" in table.notes[1]


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("conxuntos_kfold.dat", lambda text: "\n".join(text.splitlines()[:6]), "6 lines of rows instead of 8"),
        ("conxuntos.dat", lambda text: "", "0 lines of rows instead of 2"),
        ("conxuntos_kfold.dat", lambda text: "40 " + text, "line 1: rows repeat, or are not from 0 to 39"),
        ("conxuntos_kfold.dat", lambda text: "x " + text, "line 1: not row numbers"),
        ("toy_R.dat", lambda text: text.replace("\n3\t", "\n3\t?", 1), "line 4: not numbers"),
        ("toy_R.dat", lambda text: text.replace("\n3\t", "\n3\t1\t", 1), "line 4: 5 numbers instead of 4"),
        ("toy_R.dat", lambda text: re.sub(r"\n3\t[^\t]+", "\n3\tnan", text), "line 4: a value is not finite"),
        ("toy_R.dat", lambda text: "\n".join(text.splitlines()[:30]), "has 29 rows, but .*toy.txt says 40"),
        ("toy_R.dat", lambda text: "", "holds no rows"),
        ("toy.txt", lambda text: text.replace("n_arquivos= 1", "n_arquivos= 2"), "with a separate test set"),
    ],
)
def test_what_does_not_fit_is_refused_by_file_and_reason(tmp_path, file, change, said):
    path = write_table(tmp_path) / file
    path.write_text(change(path.read_text()))
    with pytest.raises(DatasetDamagedError, match=said) as refusal:
        read_table("toy", tmp_path)
    assert file in str(refusal.value)


def test_rows_both_trained_on_and_tested_are_refused(tmp_path):
    path = write_table(tmp_path) / "conxuntos_kfold.dat"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[0], *lines[2:]]))
    with pytest.raises(DatasetDamagedError, match="both in its training and its test set"):
        read_table("toy", tmp_path)


def test_one_class_is_refused(tmp_path):
    write_table(tmp_path, labels=[0] * 20)
    with pytest.raises(DatasetDamagedError, match="are of one class"):
        read_table("toy", tmp_path)


def test_missing_folder_or_file_is_named(tmp_path):
    place = write_table(tmp_path)
    with pytest.raises(DatasetMissingError, match=r"there is no folder .*other; there are toy"):
        read_table("other", tmp_path)
    (place / "conxuntos.dat").unlink()
    with pytest.raises(DatasetMissingError, match=r"cannot read .*conxuntos.dat"):
        read_table("toy", tmp_path)


def test_known_name_with_other_files_is_refused(tmp_path):
    write_table(tmp_path, "iris")
    with pytest.raises(DatasetDamagedError, match="known checksum of the table iris"):
        read_table("iris", tmp_path)
    assert read_table("iris", tmp_path, verify=False).name == "iris"


def test_folder_is_found_itself_or_as_uci_in_it(tmp_path):
    write_table(tmp_path / "uci")
    assert find_tables(tmp_path) == find_tables(tmp_path / "uci") == tmp_path / "uci"


def test_archive_gives_up_its_tables_and_nothing_else(tmp_path):
    write_table(tmp_path / "published")
    with tarfile.open(tmp_path / "data.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "published" / "toy", "./toy")
        for name in ("../../escaped_R.dat", "toy/toy.py", "/etc/toy/toy.sh"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"x"))
    unpack(tmp_path / "data.tar.gz", tmp_path / "uci")
    assert len(read_table("toy", tmp_path / "uci")) == 40
    assert sorted(path.name for path in (tmp_path / "uci").rglob("*") if path.is_file()) == [
        "conxuntos.dat",
        "conxuntos_kfold.dat",
        "toy.txt",
        "toy_R.dat",
    ]
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "data.tar.gz").read_bytes()[:200])
    with pytest.raises(DatasetDamagedError, match="cannot be unpacked"):
        unpack(tmp_path / "cut.tar.gz", tmp_path / "other")


def test_tables_are_downloaded_where_there_are_none(tmp_path, monkeypatch):
    """A local server stands in for the publisher's."""
    import functools
    import http.server
    import threading

    write_table(tmp_path / "published")
    served = tmp_path / "served"
    served.mkdir()
    (tmp_path / "fresh").mkdir()
    with tarfile.open(served / "data.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "published" / "toy", "toy")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(tables, "ADDRESS", f"http://127.0.0.1:{server.server_port}")
        found = find_tables(tmp_path / "fresh")
        server.shutdown()
    assert len(read_table("toy", found)) == 40


@pytest.mark.skipif(not REAL.is_dir(), reason="TANGENTLESS_DATA has no uci folder")
def test_published_tables_are_those_known():
    names = list(known_tables())
    for name in names[::9]:
        table = read_table(name, REAL)
        assert 10 <= len(table) <= 5000
        assert table.classes >= 2
