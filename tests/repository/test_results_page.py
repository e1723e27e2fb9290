"""The tables and figures of docs/results.md, from records of small made runs."""

import re

import pytest


@pytest.fixture
def fill(results, tmp_path):
    """Record the runs under tmp_path, fill a page of one block, and return what then stands in it."""

    def fill_page(block):
        page = tmp_path / "docs" / "results.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"before\n<!-- results: {block} -->\nold\n<!-- end -->\nafter\n", "utf-8")
        records = ["--records", str(tmp_path / "records")]
        assert results.main([*records, "add", str(tmp_path / "runs")]) == 0
        results.main([*records, "page", str(page)])
        return page.read_text("utf-8")

    return fill_page


@pytest.fixture
def three_seeds(finished_run):
    for seed in range(3):
        finished_run(f"local-s{seed}", 0, "method=local", f"seed={seed}")
        finished_run(f"fedper-s{seed}", -1 - seed, "method=fedper", f"seed={seed}")
        finished_run(f"fedhca2-s{seed}", 2 + seed, f"seed={seed}")


def test_fewer_seeds_are_never_the_best_and_changed_settings_not_averaged(fill, three_seeds, finished_run):
    finished_run("ditto-s0", 9, "method=ditto")
    finished_run("fedhca2-c0.2-s0", 90, "method.c=0.2")
    page = fill("summary scenes_1c")
    assert ("| `ditto` | +9.00 (1) | -5.57 |" in page, "+3.00" in page) == (True, True)


def test_a_seed_without_local_waits_for_it(fill, three_seeds, finished_run):
    finished_run("fedper-s3", 50, "method=fedper", "seed=3")
    page = fill("table scenes_1c")
    assert "3 seeds, mean ± standard deviation; 9 runs" in page
    finished_run("local-s3", 0, "method=local", "seed=3")
    assert "4 seeds, mean ± standard deviation; 11 runs" in fill("table scenes_1c")


ABSENT = [f"{block} scenes_2c" for block in ("table", "sensitivity", "encoders", "curve", "exchanges", "ranks")]
ABSENT += [f"{block} scenes_2c" for block in ("pace", "alpha", "beta")] + ["shared scenes_1c scenes_2c"]


@pytest.mark.parametrize("block", ABSENT)
def test_a_page_says_what_was_not_run(fill, three_seeds, block):
    assert re.search(r"^\*.*`scenes_2c` (was|were) not run", fill(block), re.M)


def test_a_run_that_no_table_shows_is_named(fill, three_seeds, finished_run, capsys):
    finished_run("odd-s0", 1, "training.learning_rate=0.5")
    fill("table scenes_1c")
    assert "in no block: fedhca2 on scenes_1c changes training.learning_rate\n" in capsys.readouterr().err


def test_runs_with_scores_over_rounds_show_their_pace_and_learned_weights(fill, three_seeds, finished_run):
    finished_run("local-traced-s0", 0, "method=local", "evaluate_every=20")
    finished_run("fedhca2-traced-s0", -10, "evaluate_every=20")
    page = fill("pace scenes_1c")
    assert ("| `local` | 40 | 9 of 9 |" in page, "| `fedhca2` | – | 0 of 9 |" in page) == (True, True)
    assert "| outdoor-sal | 0.250 | 0.500 |" in fill("alpha scenes_1c")
    assert "| outdoor-sal/sal | 0.300 | 0.200 |" in fill("beta scenes_1c")
