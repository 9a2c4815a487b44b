"""Pages, figures and commands of the experiments, on a toy data set."""

import dataclasses
import json
from pathlib import Path

import pytest

from shell import run
from tangentless import paper
from tangentless.errors import InputError
from tangentless.experiments import cifar10, cifar100, mnist
from tangentless.experiments.report import write_report
from test_experiments import OTHER, QUICK, run_subsets, run_table

RECORDS = Path(__file__).parents[1] / "benchmarks" / "results"


class TestReport:
    def test_page_has_every_row_and_says_what_was_not_run(self, tmp_path):
        run_table(tmp_path / "records", "myrtle5", ridge=1e-2)
        run_table(tmp_path / "records", "myrtle5", ridge=1e-2, train=60)
        run_subsets(tmp_path / "records")
        (tmp_path / "records" / "rates.json").write_text('{"rates": []}')
        files = write_report(tmp_path / "records", tmp_path / "docs" / "results.md")
        page = (tmp_path / "docs" / "results.md").read_text()
        for rows in paper.TABLES.values():
            assert all(f"| {row.label} |" in page for row in rows)
        (line,) = [line for line in page.splitlines() if line.startswith("| Myrtle5 Kernel | 85.8")]
        assert "| 60 | 20 |" in line  # of two records of a table, the one with more images counts
        assert "| Myrtle7 Kernel | 86.6 | not run yet |" in page
        assert "| CKN | 82.2 | not run yet |" in page
        assert "| CNTK + Flips | 81.4 | *cited* |" in page
        assert "over 2 random subsets" in page
        assert {path.name for path in files} >= {"results.md", "learning-curve.png", "cifar10-subsets.png"}
        assert all(path.exists() for path in files)

    def test_a_network_that_was_cut_short_stands_in_its_row_and_says_so(self, tmp_path):
        name = "networks-cifar10-myrtle10-flips-width-256-epochs-20.json"
        stored = json.loads((RECORDS / name).read_text())
        (tmp_path / name).write_text(json.dumps(stored))
        stored["configuration"]["changes"] = {"learning_rate": 1.0}  # another recipe: no row of the table
        stored["results"][0]["recipe"] = "cifar10-myrtle10"
        (tmp_path / "networks-other.json").write_text(json.dumps(stored))
        # Without any other result, a table has the paper's numbers alone.
        run_table(tmp_path, "myrtle5", ridge=1e-2)
        write_report(tmp_path, tmp_path / "results.md")
        page = (tmp_path / "results.md").read_text()
        assert (
            "| Myrtle10 CNN + Flips | 93.4 | 89.1 (88.4 to 89.7), cut to 256 filters and 20 epochs | 50,000 |" in page
        )
        assert "| Myrtle10 CNN | 91.2 | not run yet |" in page

    def test_an_ingredient_has_the_row_of_the_most_images_below_the_base(self, tmp_path):
        stored = json.loads((RECORDS / "recipe-2500.json").read_text())
        fewer, more = (dict(stored["results"][0], ingredient="salt", train=count) for count in (40, 60))
        for name, rows in {"a": [more], "b": [fewer, *(dict(one, ingredient="base") for one in (fewer, more))]}.items():
            (tmp_path / f"{name}.json").write_text(json.dumps({**stored, "results": rows}))
        write_report(tmp_path, tmp_path / "results.md")
        lines = (tmp_path / "results.md").read_text().splitlines()
        shown = [line.split(" | ")[:2] for line in lines if line.startswith(("| salt", "| base"))]
        assert shown == [["| base", "60"], ["| salt", "60"], ["| base", "40"]]

    def test_page_of_an_empty_folder_claims_nothing(self, tmp_path):
        (tmp_path / "records").mkdir()
        files = write_report(tmp_path / "records", tmp_path / "results.md")
        assert {path.stem for path in files} == {"results", "nonlinearities", "architectures"}
        page = (tmp_path / "results.md").read_text()
        sets = {(name, place) for name, rows in paper.TABLES.items() for row in rows for place in row.accuracies}
        assert page.count("There is no record of it yet") == len(sets)
        assert "**" not in page  # our figures are bold

    def test_stored_records_render_to_the_pages_of_the_documentation(self, tmp_path):
        write_report(RECORDS, tmp_path / "results.md")
        for name in ("results.md", "uci.md"):
            assert (tmp_path / name).read_text() == (RECORDS.parents[1] / "docs" / name).read_text()

    def test_other_kernels_have_a_table_of_their_own(self, tmp_path):
        run_subsets(tmp_path / "records")
        run_subsets(tmp_path / "records", dataclasses.replace(QUICK, kernels=(OTHER, "myrtle5"), trials=3))
        assert {path.stem for path in (tmp_path / "records").glob("*.json")} == {
            "cifar10-subsets",
            "cifar10-subsets-others",
        }
        files = write_report(tmp_path / "records", tmp_path / "results.md")
        before, after = (tmp_path / "results.md").read_text().split("## Other kernels, not in the paper")
        assert OTHER not in before
        assert "over 2 random subsets" in before
        lines = [line for line in after.splitlines() if line.startswith(f"| {OTHER} | 8 |")]
        assert [len(line.split("|")) for line in lines] == [12]
        assert "| myrtle5 | 16 |" in after
        assert all(path.exists() for path in files)

    def test_missing_folder_is_named(self, tmp_path):
        with pytest.raises(InputError, match="no folder"):
            write_report(tmp_path / "nowhere", tmp_path / "results.md")


class TestCommands:
    def invoke(self, *arguments):
        return run("reproduce", *arguments)

    @pytest.mark.parametrize("name", ["nonlinearities", "architectures"])
    def test_figures_come_as_png_and_svg(self, tmp_path, name):
        assert self.invoke(name, "-o", tmp_path).exit_code == 0
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()
        first = (tmp_path / f"{name}.svg").read_bytes()
        self.invoke(name, "-o", tmp_path)
        assert (tmp_path / f"{name}.svg").read_bytes() == first

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("cifar10-subsets", "--sizes", "ten"), "sizes are whole numbers"),
            (("cifar10-subsets", "--kernels", "resnet"), "there is no resnet here; there are myrtle5"),
            (("mnist", "--data", "nowhere", "--kernels", "lenet"), "there is no"),
            (("cifar10", "--data", "nowhere", "--kernels", "lenet"), "there is no lenet here"),
            (("mnist", "--data", "nowhere", "--record", "a/b"), "without folders"),
            (("mnist", "--data", "nowhere", "--record", ""), "without folders"),
            (("distillation", "mnist,cifar10", "--data", "nowhere"), "the data sets mnist and cifar10"),
            (("distillation", "", "--data", "nowhere"), "the data sets mnist and cifar10"),
        ],
    )
    def test_wrong_options_are_one_line(self, arguments, message):
        result = self.invoke(*arguments)
        assert result.exit_code == 2
        assert message in result.output
        assert "Traceback" not in result.output

    def test_unwritable_output_is_one_line(self, tmp_path):
        (tmp_path / "file").write_text("")
        result = self.invoke("nonlinearities", "-o", tmp_path / "file" / "below")
        assert result.exit_code == 2
        assert "cannot make the folder" in result.output


def test_paper_numbers_are_complete():
    assert [len(rows) for rows in paper.TABLES.values()] == [8, 19, 6]
    assert all(list(values) == [10, 20, 40, 80, 160, 320, 640, 1280] for values in paper.SUBSETS.values())
    kernels = {"mnist": mnist.table(), "cifar10": cifar10.table(), "cifar100": cifar100.table()}
    for name, table in kernels.items():
        own = {"best", "gaussian-no-zca", "coates-ng"}  # rows that the paper does not have
        assert {method.name for method in table.methods} - own <= {row.method for row in paper.TABLES[name]}


def test_records_hold_no_numbers_that_json_lacks(tmp_path):
    run_table(tmp_path, "myrtle5", ridge=1e-2)
    json.loads((tmp_path / "cifar10-40.json").read_text(), parse_constant=lambda name: pytest.fail(name))
