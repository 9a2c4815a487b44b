"""The experiments of the paper on a toy data set: what they compute, and how they resume."""

import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tangentless
from tangentless import KernelRidgeClassifier, kernel
from tangentless.classical import Gaussian, Linear
from tangentless.datasets import Dataset, Split
from tangentless.errors import ArchitectureError, InputError, NotPositiveDefinite, ParameterError
from tangentless.experiments import cifar10, cifar10_subsets, cifar100, mnist, tables
from tangentless.experiments.cifar10_subsets import Subsets, draw
from tangentless.experiments.records import read_record
from tangentless.experiments.splits import choose
from tangentless.experiments.whitening import Whitening
from tangentless.features import RandomPatchFeatures
from tangentless.kernel import Crossed
from tangentless.preprocessing import Augmentation, RandAugment
from tangentless.preprocessing.gabor import gabor_features
from tangentless.preprocessing.rows import set_shape
from tangentless.recipes import recipe_of
from tangentless.solve import solve_ridge
from toys import CLASSES, toy

CPU = "cpu"
OTHER = "conv3 relu pool2 conv3 gaussian globalpool normalize relu"
QUICK = Subsets(sizes=(8, 16), kernels=("myrtle5", "linear"), trials=2, ridges=(0.0, 1e-2, 1.0))


def run_subsets(folder, subsets=QUICK, test=20):
    return cifar10_subsets.reproduce(toy(), subsets, test=test, backend=CPU, folder=folder)


def run_table(folder, *methods, table=None, dataset=None, **options):
    settings = tables.Settings(methods, **{"train": 40, "test": 20} | options)
    return tables.reproduce(table or cifar10.table(), dataset or toy(), settings, backend=CPU, folder=folder)


class TestSubsets:
    def test_accuracies_are_those_of_separate_classifiers(self, tmp_path):
        outcome = run_subsets(tmp_path)
        data = toy()
        for name, k, epsilon in (("myrtle5", kernel("myrtle5"), 1e-5), ("linear", None, 1e-4)):
            zca = Whitening(epsilon).fit(data, tmp_path / "pieces")
            row = next(r for r in outcome.rows if (r["kernel"], r["draw"], r["size"]) == (name, "balanced", 16))
            for trial in range(2):
                chosen = draw(data.train.labels, QUICK, trial)["balanced"][16]
                X, T = (zca.transform(images) for images in (data.train.images[chosen], data.test.images[:20]))
                flat = X.reshape(16, -1), T.reshape(20, -1)
                K, beside = (
                    (flat[0] @ flat[0].T, flat[1] @ flat[0].T)
                    if k is None
                    else (k(X, backend=CPU), k(T, X, backend=CPU))
                )
                own, one, best = (row[way] for way in cifar10_subsets.WAYS)
                for way, ridge in ((own, own["ridges"][trial]), (one, one["ridge"]), (best, best["ridge"])):
                    model = KernelRidgeClassifier("precomputed", ridge=ridge).fit(K, data.train.labels[chosen])
                    assert way["accuracies"][trial] == model.score(beside, data.test.labels[:20])

    def test_ridge_by_leave_one_out_is_the_best_of_the_grid(self, tmp_path):
        row = run_subsets(tmp_path, Subsets((16,), ("myrtle5",), 1, ridges=(1e-2, 1.0, 1e4))).rows[0]
        data, zca = toy(), Whitening(1e-5).fit(toy(), tmp_path / "pieces")
        chosen = draw(data.train.labels, Subsets((16,)), 0)["balanced"][16]
        K = kernel("myrtle5")(zca.transform(data.train.images[chosen]), backend=CPU)
        Y = np.eye(CLASSES)[data.train.labels[chosen]]
        shares = {}
        for ridge in (1e-2, 1.0, 1e4):
            loo = solve_ridge(K, Y, ridge).leave_one_out
            shares[ridge] = (-(loo.argmax(1) == Y.argmax(1)).mean(), ((loo - Y) ** 2).mean())
        assert row["by leave-one-out"]["ridges"] == [min(shares, key=shares.get)]

    def test_balanced_draws_have_all_classes_and_sizes_nest(self):
        labels = toy().train.labels
        drawn = draw(labels, QUICK, trial=1)
        assert np.bincount(labels[drawn["balanced"][8]]).tolist() == [2] * CLASSES
        for sizes in drawn.values():
            assert set(sizes[8]) < set(sizes[16])
        assert set(drawn["uniform"][16]) != set(draw(labels, QUICK, trial=0)["uniform"][16])

    def test_sizes_that_cannot_be_drawn_are_refused(self):
        labels = toy().train.labels
        with pytest.raises(ParameterError, match="multiples of 4, or --draws uniform"):
            draw(labels, Subsets((10,)), 0)
        with pytest.raises(ParameterError, match="is too large"):
            draw(labels, Subsets((160,)), 0)
        assert len(draw(labels, Subsets((10,), draws=("uniform",)), 0)["uniform"][10]) == 10

    def test_second_run_computes_nothing(self, tmp_path, monkeypatch):
        first = run_subsets(tmp_path)
        monkeypatch.setattr(cifar10_subsets._Scorer, "score", lambda *arguments: pytest.fail("computed again"))
        assert run_subsets(tmp_path).rows == first.rows

    def test_architectures_that_do_not_fit_are_refused_before_anything_is_written(self, tmp_path):
        with pytest.raises(ArchitectureError, match="does not divide"):
            run_subsets(tmp_path / "new", dataclasses.replace(QUICK, kernels=("conv3 relu pool3 globalpool",)))
        assert not (tmp_path / "new").exists()

    def test_more_test_images_than_there_are_is_refused(self, tmp_path):
        with pytest.raises(ParameterError, match="there are 30 test images, and 31 are asked for"):
            run_subsets(tmp_path / "new", test=31)
        assert not (tmp_path / "new").exists()

    def test_record_and_pictures_are_written(self, tmp_path):
        outcome = run_subsets(tmp_path)
        record = read_record(tmp_path / "cifar10-subsets.json")
        assert record["results"] == outcome.rows
        assert record["data"] == {"cifar10": dict(toy().hashes)}
        assert record["configuration"]["test images"] == 20
        assert [path.suffix for path in outcome.files] == [".json", ".png", ".svg"]
        assert all(path.stat().st_size > 1000 for path in outcome.files)

    def test_one_ridge_by_leave_one_out_takes_no_test_labels(self, tmp_path):
        first = run_subsets(tmp_path / "first").rows
        data = toy()
        turned = Dataset(
            data.name,
            data.train,
            Split(data.test.images, (data.test.labels + 1) % CLASSES),
            data.classes,
            {"turned": "1"},
        )
        second = cifar10_subsets.reproduce(turned, QUICK, test=20, backend=CPU, folder=tmp_path / "second").rows
        for a, b in zip(first, second, strict=True):
            assert a["by pooled leave-one-out"]["ridge"] == b["by pooled leave-one-out"]["ridge"]
            assert a["by leave-one-out"]["ridges"] == b["by leave-one-out"]["ridges"]
        assert [row["by test mean"]["mean"] for row in first] != [row["by test mean"]["mean"] for row in second]

    def test_singular_matrix_loses_its_ridge_only(self):
        tested = Split(np.zeros((3, 1), np.uint8), np.zeros(3, np.int64))
        scorer = cifar10_subsets._Scorer("linear", Whitening(1e-4), toy(), tested, (0.0, 1.0), CPU, Path())
        found = scorer._fit([(np.ones((4, 4)), np.ones((4, 3)))], np.eye(2)[[0, 0, 0, 1]])
        assert found["right"][0] is None
        assert found["right"][1] == 3
        assert cifar10_subsets._choose([found]) == 1


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import test_experiments as t
print("ready", flush=True)
t.run_subsets(Path(sys.argv[1]), t.Subsets(sizes=(16, 32), kernels=("myrtle5",), trials=300, ridges=(1e-2,)))
"""


def test_killed_run_goes_on_and_ends_with_the_same_numbers(tmp_path):
    """The process is killed in the middle of a trial; the next run does not repeat what was finished."""
    subsets = Subsets(sizes=(16, 32), kernels=("myrtle5",), trials=6, ridges=(1e-2,))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    pieces = tmp_path / "killed" / "pieces"
    deadline = time.monotonic() + 600
    while len(list(pieces.glob("cifar10-subsets-*.json"))) < 2 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path.name: path.stat().st_mtime_ns for path in pieces.iterdir() if path.suffix == ".json"}
    assert 2 <= len(before) < 300
    resumed = run_subsets(tmp_path / "killed", subsets)
    assert not [name for name, when in before.items() if (pieces / name).stat().st_mtime_ns != when]
    assert resumed.rows == run_subsets(tmp_path / "whole", subsets).rows


def test_subsets_take_recipes(tmp_path):
    subsets = dataclasses.replace(QUICK, sizes=(16,), kernels=("best",), trials=1, draws=("balanced",))
    (row,) = run_subsets(tmp_path, subsets).rows
    best, data = recipe_of("best"), toy()
    zca = Whitening(best.epsilon).fit(data, tmp_path / "pieces")
    rows = draw(data.train.labels, subsets, trial=0)["balanced"][16]
    X, T = (zca.transform(i).astype(np.float32) for i in (data.train.images[rows], data.test.images[:20]))
    ridge = row["by pooled leave-one-out"]["ridge"]
    model = dataclasses.replace(best, ridge=ridge).estimator(backend=CPU).fit(X, data.train.labels[rows])
    assert row["by pooled leave-one-out"]["mean"] == model.score(T, data.test.labels[:20])


class TestTables:
    def test_flips_are_those_of_the_doubled_set(self, tmp_path):
        """The K + M of the table equals training on all 2n images with the same ridge."""
        outcome = run_table(tmp_path, "myrtle10-gaussian", "myrtle10-gaussian+flips", ridge=1e-3)
        data, zca = toy(), Whitening(1e-5).fit(toy(), tmp_path / "pieces")
        chosen = choose(80, 40, 0)
        X, T = (zca.transform(i).astype(np.float32) for i in (data.train.images[chosen], data.test.images[:20]))
        k, labels = kernel("myrtle10-gaussian"), data.train.labels[chosen]
        plain, flipped = (
            next(row for row in outcome.rows if row["method"] == name and row["tilt asked"] == 0.0)
            for name in ("myrtle10-gaussian", "myrtle10-gaussian+flips")
        )
        both = np.concatenate([X, X[:, :, ::-1]])
        doubled = KernelRidgeClassifier(k, 1e-3, backend=CPU).fit(both, np.concatenate([labels, labels]))
        single = KernelRidgeClassifier(k, 1e-3, backend=CPU).fit(X, labels)
        assert flipped["accuracy"] == doubled.score(T, data.test.labels[:20])
        assert plain["accuracy"] == single.score(T, data.test.labels[:20])
        assert plain["leave-one-out accuracy"] == single.loo_score_

    def test_crossed_is_the_other_half_of_mirrored(self, rng):
        X = rng.standard_normal((4, 4, 4, 2))
        k = kernel("conv3 relu pool2 conv3 gaussian globalpool normalize relu")
        K, M, both = (one(X, backend="reference") for one in (k, Crossed(k), k.mirrored()))
        np.testing.assert_allclose((K + M) / 2, both, rtol=1e-14)
        np.testing.assert_allclose(M, k(X, X[:, :, ::-1], backend="reference"), rtol=1e-12)

    def test_tilts_are_those_of_the_classifier(self, tmp_path):
        rows = run_table(tmp_path, "myrtle5", ridge=1e-2).rows
        data, zca = toy(), Whitening(1e-5).fit(toy(), tmp_path / "pieces")
        chosen = choose(80, 40, 0)
        X, T = (zca.transform(i).astype(np.float32) for i in (data.train.images[chosen], data.test.images[:20]))
        for row, tilt in zip(rows, (0.0, 0.3, "loo"), strict=True):
            model = KernelRidgeClassifier("myrtle5", 1e-2, backend=CPU, tilt=tilt)
            model.fit(X, data.train.labels[chosen])
            assert row["tilt"] == model.tilt_
            assert row["accuracy"] == model.score(T, data.test.labels[:20])

    def test_flips_share_the_blocks_of_the_plain_row(self, tmp_path, monkeypatch):
        computed = []
        grow = tables._Work._extend

        def counted(self, method, kernel, tested, label, *known):
            computed.append(label)
            return grow(self, method, kernel, tested, label, *known)

        monkeypatch.setattr(tables._Work, "_extend", counted)
        run_table(tmp_path, "myrtle10-gaussian", "myrtle10-gaussian+flips", ridge=1e-3)
        assert len(computed) == len(set(computed)) == 4

    def test_stores_outlive_the_run_and_grow(self, tmp_path, monkeypatch):
        names = ("myrtle10-gaussian", "myrtle10-gaussian+flips")

        def rows(train, folder, store=None):
            settings = tables.Settings(names, train, 10, ridge=1e-3, store=store)
            found = tables.reproduce(cifar10.table(), toy(), settings, backend=CPU, folder=tmp_path / folder).rows
            return [(row["method"], row["tilt"], row["right"], row["leave-one-out accuracy"]) for row in found]

        first = rows(24, "first", tmp_path / "store")
        assert len(list((tmp_path / "store").glob("*.zarr"))) == 4
        grown = rows(32, "grown", tmp_path / "store")
        assert grown == rows(32, "in memory")
        assert first == rows(24, "first in memory")
        assert rows(16, "shrunk", tmp_path / "store") == rows(16, "shrunk in memory")

    def test_the_best_recipe_is_a_row_of_its_own(self, tmp_path):
        row = run_table(tmp_path, "best").rows[-1]
        best = recipe_of("best")
        data, zca = toy(), Whitening(best.epsilon).fit(toy(), tmp_path / "pieces")
        chosen = choose(80, 40, 0)
        X, T = (zca.transform(i).astype(np.float32) for i in (data.train.images[chosen], data.test.images[:20]))
        model = best.estimator(backend=CPU).fit(X, data.train.labels[chosen])
        assert row["accuracy"] == model.score(T, data.test.labels[:20])
        assert (row["kernel"], row["flips"], row["ridge"]) == (repr(best.kernel), best.flips, best.ridge)

    @pytest.mark.parametrize("kept", [False, True], ids=["in memory", "in a store"])
    def test_a_curve_from_one_matrix_is_that_of_separate_runs(self, tmp_path, kept):
        name, sizes = "myrtle10-gaussian+flips", (16, 24)
        options = {"ridge": 1e-3, "test": 10, "store": tmp_path / "store" if kept else None}
        curve = run_table(tmp_path, name, train=None, sizes=sizes, **options)
        assert [row["train"] for row in curve.rows if row["tilt asked"] == 0.0] == list(sizes)
        for size in sizes:
            alone = run_table(tmp_path / f"alone{size}", name, train=size, ridge=1e-3, test=10).rows
            mine = [row for row in curve.rows if row["train"] == size]
            scores = ("right", "leave-one-out accuracy", "tilt", "pairs")
            assert [[row[score] for score in scores] for row in mine] == [[row[s] for s in scores] for row in alone]
        assert run_table(tmp_path, name, train=24, ridge=1e-3, test=10).rows == curve.rows[3:6]  # the same pieces
        if kept:  # a run that starts at a later size finds the stores of all steps
            stores = set((tmp_path / "store").iterdir())
            again = run_table(tmp_path / "again", name, train=None, sizes=sizes, **options)
            assert set((tmp_path / "store").iterdir()) == stores
            assert [row["right"] for row in again.rows] == [row["right"] for row in curve.rows]

    def test_a_curve_learns_filters_and_kernels_from_the_images_of_each_size(self, tmp_path):
        options = {"train": None, "test": 10, "dataset": toy(side=8)}
        for name in ("gaussian", "coates-ng+flips"):
            curve = run_table(tmp_path / name, name, sizes=(36, 72), **options).rows
            alone = run_table(tmp_path / f"{name} alone", name, **options | {"train": 36}).rows
            pairs = zip(curve[: len(alone)], alone, strict=True)
            assert all((one["kernel"], one["right"]) == (other["kernel"], other["right"]) for one, other in pairs)

    def test_what_cannot_be_run_is_refused_before_anything_is_computed(self, tmp_path):
        with pytest.raises(ParameterError, match="test images, and 1,000 are asked for"):
            run_table(tmp_path, "myrtle5", test=1000)
        with pytest.raises(InputError, match="leaves nothing of images"):
            run_table(tmp_path, "myrtle5", extras=tables.Extras(averaging="shifts4"))
        assert not list(tmp_path.iterdir())

    def test_a_curve_that_is_cut_off_leaves_what_it_had_and_goes_on(self, tmp_path, monkeypatch):
        grow = tables._Work._extend

        def dying(self, *arguments):
            if arguments[-1] > 24:
                raise KeyboardInterrupt
            return grow(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(tables._Work, "_extend", dying)
            with pytest.raises(KeyboardInterrupt):
                run_table(tmp_path, "myrtle5", train=None, sizes=(16, 24, 32), ridge=1e-2)
        left = read_record(tmp_path / "cifar10-curve-32.json")["results"]
        assert sorted({row["train"] for row in left}) == [16, 24]
        whole = run_table(tmp_path, "myrtle5", train=None, sizes=(16, 24, 32), ridge=1e-2).rows
        assert [dict(row) for row in whole[: len(left)]] == left
        assert whole[-1]["train"] == 32

    def test_ensembles_and_averages_are_those_of_the_classifier(self, tmp_path):
        extras = tables.Extras(Augmentation(crop=1, flips=True), 2, "mirror")
        (row,) = run_table(tmp_path, "myrtle5", ridge=1e-2, extras=extras).rows
        data, zca = toy(), Whitening(1e-5).fit(toy(), tmp_path / "pieces")
        chosen = choose(80, 40, 0)
        X, T = (zca.transform(i).astype(np.float32) for i in (data.train.images[chosen], data.test.images[:20]))
        options = {"augmentation": extras.augmentation, "ensemble": 2, "averaging": "mirror", "tilt": "loo"}
        model = KernelRidgeClassifier("myrtle5", 1e-2, backend=CPU, **options).fit(X, data.train.labels[chosen])
        assert row["accuracy"] == model.score(T, data.test.labels[:20])
        assert row["leave-one-out accuracy"] == model.loo_score_
        assert row["method"] == "myrtle5+extras"

    def test_an_ensemble_that_was_cut_off_goes_on_with_the_next_member(self, tmp_path, monkeypatch):
        copies = Augmentation(crop=1)
        two, four = (tables.Extras(copies, count) for count in (2, 4))
        run_table(tmp_path, "myrtle5", ridge=1e-2, extras=two)
        fits, fit = [], KernelRidgeClassifier.fit
        monkeypatch.setattr(KernelRidgeClassifier, "fit", lambda self, *data: fits.append(self) or fit(self, *data))
        (row,) = run_table(tmp_path, "myrtle5", ridge=1e-2, extras=four).rows
        assert len(fits) == 2
        (again,) = run_table(tmp_path / "anew", "myrtle5", ridge=1e-2, extras=four).rows
        assert len(fits) == 6
        same = ("accuracy", "leave-one-out accuracy", "tilt", "kernel", "flips", "ridge")
        assert [row[name] for name in same] == [again[name] for name in same]

    def test_training_images_of_two_classes_make_an_ensemble_too(self, tmp_path):
        data = toy()
        train = data.train.take(np.flatnonzero(data.train.labels < 2))
        extras = tables.Extras(Augmentation(crop=1), 2)
        some = dataclasses.replace(data, train=train)
        (row,) = run_table(tmp_path, "myrtle5", dataset=some, train=16, ridge=1e-2, extras=extras).rows
        assert row["leave-one-out accuracy"] > 0.5

    def test_randaugment_changes_images_before_they_are_whitened(self, tmp_path):
        copies = Augmentation(crop=1, randaugment=RandAugment(1, 9))
        (row,) = run_table(tmp_path, "myrtle5", ridge=1e-2, extras=tables.Extras(copies, 2)).rows
        data, zca = toy(), Whitening(1e-5).fit(toy(), tmp_path / "pieces")
        chosen = choose(80, 40, 0)
        values = 0
        for draw_number in range(2):
            changed = RandAugment(1, 9).copy(data.train.images[chosen], draw_number)
            X = Augmentation(crop=1).copy(zca.transform(changed).astype(np.float32), draw_number)
            model = KernelRidgeClassifier("myrtle5", 1e-2, backend=CPU, tilt=row["tilt"])
            model.fit(X, data.train.labels[chosen])
            values = values + model.decision_function(zca.transform(data.test.images[:20]).astype(np.float32))
        assert row["accuracy"] == (values.argmax(axis=1) == data.test.labels[:20]).mean()

    def test_other_test_sets_are_scored_too(self, tmp_path):
        settings = tables.Settings(("myrtle5",), 40, 10, ridge=1e-2)
        newer = toy(train=0, test=20, name="cifar10.1", seed=1)
        outcome = tables.reproduce(cifar10.table(), toy(), settings, backend=CPU, folder=tmp_path, others=[newer])
        found = {(row["test set"], row["paper"]) for row in outcome.rows}
        assert found == {("cifar10", 0.858), ("cifar10.1", 0.716)}

    def test_another_grid_is_another_piece_where_something_is_chosen(self, tmp_path, monkeypatch):
        table = cifar10.table()

        def pieces(*candidates):
            grid = tables.Candidates(candidates, lambda images: [Gaussian(gamma) for gamma in candidates])
            changed = dataclasses.replace(table.method("gaussian"), kernels=grid)
            run_table(tmp_path, "gaussian", table=dataclasses.replace(table, methods=(changed,)))
            return len(list((tmp_path / "pieces").glob("cifar10-*.json")))

        assert [pieces(0.1), pieces(0.1, 1.0), pieces(0.1)] == [1, 2, 2]
        monkeypatch.setattr(tables, "CHOSEN_ON", 20)
        assert pieces(0.1) == 3
        monkeypatch.setattr(tables, "DECADES", tables.DECADES[::2])
        assert pieces(0.1) == 4

    def test_where_nothing_is_chosen_no_grid_counts(self):
        method = cifar10.table().method("myrtle5")
        assert method.choice(0.0) == {}
        assert method.choice(None)["choice"]["kernels"] == "myrtle5"

    def test_more_images_than_there_are_is_refused(self):
        with pytest.raises(ParameterError, match="training images, and"):
            choose(10, 11, 0)

    def test_classical_rows_choose_by_leave_one_out(self, tmp_path):
        data = toy(side=28, channels=1, name="mnist", train=60)
        methods = ("gaussian", "arc-cosine", "ntk", "gabor-gaussian")
        outcome = run_table(tmp_path, *methods, table=mnist.table(), dataset=data)
        for row in outcome.rows:
            best = max(one["leave-one-out accuracy"] for one in row["candidates"])
            picked = next(one for one in row["candidates"] if one["kernel"] == row["kernel"])
            assert picked["leave-one-out accuracy"] == best
            assert picked["ridge"] == row["ridge"]
            assert row["accuracy"] > 0.5

    def test_a_candidate_without_a_solution_ends_the_choice_and_is_named(self):
        rows = np.random.default_rng(0).random((60, 6))
        work = SimpleNamespace(images={None: rows}, train=SimpleNamespace(labels=np.arange(60) % 3), backend="cpu")
        both = tables.Candidates("linear ones", lambda images: [Linear(), 2.0 * Linear()])
        method = tables.Method("linear", "pixels", both, ridge=1e-30)
        with pytest.raises(NotPositiveDefinite, match=r"Linear\(\) is not positive definite at ridge 1e-30"):
            tables._Work._choose(work, method, 1e-30, 60)

    def test_rows_of_learnt_features_choose_among_variants_without_test_labels(self, tmp_path):
        variants = [{"patch": 3, "mirrors": True, "bias": bias, "backend": CPU} for bias in (0.0, 1.0)]
        method = tables.Method(
            "coates-ng+flips", "bytes", tables.learnt_features(RandomPatchFeatures, variants, 4), ridge=None
        )
        table = dataclasses.replace(cifar10.table(), methods=(method,))
        row, *_ = run_table(tmp_path, method.name, table=table, dataset=toy(side=8)).rows
        assert len(row["candidates"]) == 2
        assert row["kernel"] in [one["kernel"] for one in row["candidates"]]
        assert (row["paper"], row["preprocessing"]) == (0.856, "bytes")
        assert row["accuracy"] > 0.5
        data = toy(side=8).train.take(choose(80, 40, 0)).images.astype(np.float32)
        kernels = [RandomPatchFeatures(filters=10, **options).fit(data).kernel() for options in variants]
        assert [repr(one) for one in kernels] == [one["kernel"] for one in row["candidates"]]

    def test_features_of_the_tables_fit_their_images(self):
        for table, shape in ((mnist.table(), (28, 28, 1)), (cifar10.table(), (32, 32, 3))):
            learnt = [
                one.kernels.describe for one in table.methods if "features" in getattr(one.kernels, "describe", "")
            ]
            assert learnt
            for about in learnt:
                for options in about["variants"]:
                    features = getattr(tangentless, about["features"])(**options)
                    features.check_parameters()
                    set_shape(features, shape)
                    features._check_shape((1000, *shape))

    def test_an_open_ridge_is_chosen_again_on_all_images(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tables, "CHOSEN_ON", 20)
        monkeypatch.setattr(tables._Work, "_choose", lambda *arguments: (Gaussian(1e-3), 10.0, []))
        row = run_table(tmp_path, "gaussian").rows[0]
        accuracies = [one["leave-one-out accuracy"] for one in row["refined"]]
        assert row["leave-one-out accuracy"] == max(accuracies)
        assert row["ridge"] == row["refined"][accuracies.index(max(accuracies))]["ridge"]
        assert run_table(tmp_path, "gaussian", ridge=0.1).rows[0]["refined"] is None

    def test_preprocessings_are_told_apart(self, tmp_path):
        rows = run_table(tmp_path, "myrtle5-no-zca", "myrtle5", ridge=1e-2).rows
        assert rows[0]["preprocessing"] != rows[-1]["preprocessing"]
        copies = run_table(tmp_path, "myrtle5", ridge=1e-2, table=cifar10.table(copies=1)).rows
        assert copies[0]["preprocessing"]["zca"]["copies"] == 1
        assert len(list((tmp_path / "pieces").glob("*-zca-*.npy"))) == 2

    def test_cifar100_has_its_own_epsilon_and_ridge(self, tmp_path):
        row = run_table(tmp_path, "myrtle10-gaussian", table=cifar100.table(), dataset=toy(name="cifar100")).rows[0]
        assert row["ridge"] == 1e-4
        assert row["preprocessing"]["zca"]["epsilon"] == 1e-4


class TestGabor:
    def test_stripes_respond_most_in_their_own_direction(self):
        x = np.arange(28)
        for turn in (0, 4):  # stripes that vary along x, and along y
            wave = 127 + 120 * np.cos(2 * np.pi * x / 6)
            image = np.broadcast_to(wave if turn == 0 else wave[:, None], (28, 28)).astype(np.uint8)
            answers = gabor_features(image[None, ..., None])[0, 2:5, 2:5].mean(axis=(0, 1))
            assert answers.argmax() == 8 + turn  # the second wavelength is 6 pixels

    def test_flat_images_have_no_features_inside(self):
        flat = gabor_features(np.full((1, 28, 28, 1), 200, np.uint8))
        edge = np.abs(flat).max()
        assert np.abs(flat[0, 3, 3]).max() < 0.1 * edge


class TestWhitening:
    def test_it_is_fitted_once(self, tmp_path, monkeypatch):
        first = Whitening(1e-5).fit(toy(), tmp_path)
        monkeypatch.setattr("tangentless.preprocessing.ZCA.fit", lambda *given: pytest.fail("fitted again"))
        again = Whitening(1e-5).fit(toy(), tmp_path)
        images = toy().test.images
        np.testing.assert_array_equal(first.transform(images), again.transform(images))

    def test_file_of_another_shape_is_refused(self, tmp_path):
        Whitening(1e-5).fit(toy(), tmp_path)
        (path,) = tmp_path.iterdir()
        np.save(path, np.eye(3))
        with pytest.raises(InputError, match="remove it"):
            Whitening(1e-5).fit(toy(), tmp_path)
