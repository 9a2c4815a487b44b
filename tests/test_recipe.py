"""The search for a recipe, and recipes by name."""

import dataclasses

import numpy as np
import pytest

import tangentless as tl
from shell import run
from tangentless import kernel
from tangentless.architecture import RECIPE_NAMES
from tangentless.errors import InputError, ParameterError
from tangentless.experiments import recipe as recipes
from tangentless.experiments.law import PowerLaw, describe_laws
from tangentless.experiments.recipe import INGREDIENTS as ALL
from tangentless.experiments.recipe import Ingredient, with_head
from tangentless.experiments.records import read_record
from tangentless.experiments.splits import choose
from tangentless.experiments.whitening import Whitening
from tangentless.models import load_model
from tangentless.preprocessing import Augmentation
from tangentless.recipes import RECIPES, KernelRecipe
from toys import toy

CPU = "cpu"
SMALL = kernel("conv3 gaussian pool2 conv3 gaussian globalpool normalize gaussian")
BASE = KernelRecipe(SMALL, epsilon=1e-3, ridge=1e-3)
INGREDIENTS = (
    Ingredient("tilt", lambda recipe: dataclasses.replace(recipe, tilt="loo")),
    Ingredient("head", lambda recipe: dataclasses.replace(recipe, kernel=with_head(recipe.kernel, 2.0))),
    Ingredient("sum", lambda recipe: dataclasses.replace(recipe, kernel=recipe.kernel + 0.5 * kernel("myrtle5"))),
    Ingredient("learnt", learn=lambda images: tl.RandomPatchFeatures(4, patch=3, mirrors=True).fit(images).kernel()),
    Ingredient("copies", lambda recipe: dataclasses.replace(recipe, averaging="shifts1"), share=0.5, new=True),
    Ingredient(
        "draws",
        lambda recipe: dataclasses.replace(recipe, augmentation=Augmentation(crop=1), ensemble=2),
        share=0.5,
        new=True,
    ),
)


class TestRecipe:
    def run(self, folder, **options):
        settings = recipes.Settings(train=40, validation=20, **options)
        given = {"base": BASE, "ingredients": INGREDIENTS, "folder": folder}
        return recipes.reproduce(toy(), settings, backend=CPU, **given)

    def test_rows_are_those_of_classifiers(self, tmp_path):
        rows = {row["ingredient"]: row for row in self.run(tmp_path).rows}
        data, zca = toy(), Whitening(1e-3).fit(toy(), tmp_path / "pieces")
        chosen = choose(80, 60, 0)
        X, y = zca.transform(data.train.images[chosen]).astype(np.float32), data.train.labels[chosen]
        for one in INGREDIENTS:
            size = round(40 * one.share)
            model = one(BASE, lambda _: X[:40]).estimator(backend=CPU).fit(X[:size], y[:size])
            assert rows[one.name]["leave-one-out accuracy"] == pytest.approx(model.loo_score_)
            if one.new:
                assert rows[one.name]["validation accuracy"] == pytest.approx(model.score(X[40:], y[40:]))
        pairs = {name: row["pairs"] for name, row in rows.items()}
        assert pairs["base"] == 2 * 820
        assert pairs["tilt"] == pairs["head"] == 0  # they need no new kernel entries
        assert rows["base"]["gain"] == 0
        assert any(name.startswith("chosen: ") for name in rows)

    def test_a_run_out_of_time_leaves_what_it_had_and_goes_on(self, tmp_path):
        first = self.run(tmp_path, minutes=0.0)
        assert first.unfinished
        left = read_record(tmp_path / "recipe-40.json")["results"]
        assert [row["ingredient"] for row in left] == ["base"]
        whole = self.run(tmp_path, store=tmp_path / "matrices")
        assert dict(whole.rows[0]) == left[0]
        again = self.run(tmp_path)
        assert again.rows == whole.rows

    @pytest.mark.parametrize("kept", [False, True])
    def test_validation_images_of_another_run_are_not_taken_for_those_of_this_one(self, tmp_path, kept):
        store = tmp_path / "matrices" if kept else None

        def rows(folder, train, share):
            settings = recipes.Settings(train=train, validation=20, combine=False, store=store)
            one = dataclasses.replace(INGREDIENTS[4], share=share)  # both runs score it on 20 training images
            found = recipes.reproduce(toy(), settings, backend=CPU, folder=folder, base=BASE, ingredients=(one,)).rows
            return [(row["train"], row["validation accuracy"], row["gain"]) for row in found]

        shared, (first, second) = tmp_path / "shared", (tmp_path / "first", tmp_path / "second")
        rows(first if kept else shared, 40, 0.5)
        found = rows(second if kept else shared, 20, 1.0)
        store = None
        assert found == rows(tmp_path / "alone", 20, 1.0)

    @pytest.mark.parametrize("absent", [1, 2])
    def test_ensembles_of_fewer_classes_than_the_data_have_are_scored_by_label(self, tmp_path, absent):
        data = toy()
        kept = data.train.take(np.flatnonzero(data.train.labels >= absent))
        draws = dataclasses.replace(INGREDIENTS[5], share=1.0)
        settings, given = recipes.Settings(train=24, validation=16, combine=False), {"base": BASE, "folder": tmp_path}
        few = dataclasses.replace(data, train=kept, hashes={"without": str(absent)})
        row = recipes.reproduce(few, settings, backend=CPU, ingredients=(draws,), **given).rows[1]
        chosen = choose(len(kept), 40, 0)
        X = Whitening(1e-3).fit(few, tmp_path / "pieces").transform(kept.images[chosen]).astype(np.float32)
        y = kept.labels[chosen]
        model = draws(BASE, lambda _: X).estimator(backend=CPU).fit(X[:24], y[:24])
        assert row["leave-one-out accuracy"] == pytest.approx(model.loo_score_)
        assert row["validation accuracy"] == pytest.approx(model.score(X[24:], y[24:]))

    def test_unknown_ingredients_are_refused(self, tmp_path):
        with pytest.raises(ParameterError, match="there is no ingredient salt"):
            self.run(tmp_path, ingredients=("salt",))


def test_every_ingredient_fits_images_of_cifar10():
    images = np.random.default_rng(0).standard_normal((20, 32, 32, 3), dtype=np.float32)
    for one in ALL:
        for leaf in one(recipes.BASE, lambda _: images).kernel.leaves():
            assert leaf.elements((32, 32, 3)) > 0
    assert len({one.name for one in ALL}) == len(ALL)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_fit_and_predict_by_name(name):
    data = toy()
    model = tl.recipe(name, backend=CPU).fit(data.train.images, data.train.labels)
    assert model.score(data.test.images, data.test.labels) > 0.5
    with pytest.raises(ParameterError, match="there is no recipe 'worst'"):
        tl.recipe("worst")


def test_the_command_line_knows_recipes(tmp_path):
    data, files = toy(), [tmp_path / name for name in ("x.npy", "y.npy", "model.npz")]
    np.save(files[0], data.train.images)
    np.save(files[1], data.train.labels)
    arguments = ["fit", "best", *files[:2], "-o", files[2], "--backend", CPU]
    assert run(*arguments).exit_code == 0
    model = load_model(files[2])
    assert (model[0].epsilon, model[1].kernel) == (RECIPES["best"].epsilon, RECIPES["best"].kernel)
    refused = run(*arguments, "--force", "--flips")
    assert refused.exit_code != 0


@pytest.mark.parametrize("regression", [(), ("--regression",)])
def test_the_command_line_sets_the_ridge_and_the_patches_of_a_recipe(tmp_path, regression):
    data, files = toy(), [tmp_path / name for name in ("x.npy", "y.npy", "model.npz")]
    np.save(files[0], data.train.images[:20])
    np.save(files[1], data.train.labels[:20].astype(float if regression else int))
    arguments = ["fit", "best", *files[:2], "-o", files[2], "--backend", CPU, "--force", *regression]
    assert run(*arguments, "--ridge", "0.5", "--patch", "2").exit_code == 0
    model = load_model(files[2])
    assert (model[0].patch, model[0].epsilon, model[1].ridge_) == (2, RECIPES["best"].epsilon, 0.5)
    assert ", ridge" in run(*arguments, "--ridge", "loo").output
    assert load_model(files[2])[1].ridge == "loo"


@pytest.mark.parametrize("errors", [[0.4, 0.2, 0.0], [1.0, 0.5, 0.2]])
def test_a_law_is_not_fitted_to_predictions_that_are_all_right_or_all_wrong(errors):
    with pytest.raises(InputError, match="above 0 and below 1"):
        PowerLaw.fit([10, 20, 40], errors, [100, 100, 100])


def test_a_curve_that_does_not_fall_has_no_size_to_come():
    row = {"method": "m", "rows": 100, "machine": "here", "flips": False, "pairs": 9, "spent": {"kernel": 1.0}}
    rows = [row | {"train": n, "accuracy": 0.5, "leave-one-out accuracy": 1 - 50 / n} for n in (2000, 4000, 8000)]
    words = describe_laws(rows)
    assert "by 100 test images: the error does not fall" in words
    assert words.count("would be passed at") == 1


def test_a_law_is_recovered_with_its_uncertainty():
    sizes, rows = np.array([2000, 4000, 8000, 16000]), [10_000] * 4
    exact = 2.0 * sizes**-0.3
    law = PowerLaw.fit(sizes, exact, rows)
    assert law.slope == pytest.approx(0.3)
    low, high = law.size_interval(0.08)
    assert law.size(0.08) == pytest.approx((2.0 / 0.08) ** (1 / 0.3))
    assert low < law.size(0.08) < high
    noisy = PowerLaw.fit(sizes, exact * [1.1, 0.9, 1.1, 0.9], rows)
    assert np.ptp(noisy.size_interval(0.08)) > high - low


def test_the_names_of_recipes_are_told_from_architectures():
    assert set(RECIPE_NAMES) == set(RECIPES)
