import json

import pytest
import yaml
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.clients.privacy import epsilon
from fedhca2.federation.flower.deploy.site_config import Ledger, Sent, SiteConfig


def invoke(*words):
    return CliRunner().invoke(app, ["privacy", *words])


def planned(*words):
    return json.loads(invoke("plan", *words, "--json").stdout)


def test_a_plan_has_the_noise_for_a_budget():
    found = planned("--epsilon", "8", "--rounds", "100", "--delta", "1e-6")
    assert found["epsilon"] == epsilon(found["noise"], 100, 1e-6) == pytest.approx(8, rel=1e-3)


def test_a_plan_has_the_budget_for_a_noise():
    assert planned("--noise", "4", "--rounds", "100")["epsilon"] == epsilon(4.0, 100)


def test_a_plan_has_the_rounds_for_both():
    assert planned("--noise", "4", "--epsilon", "8")["rounds"] == 44


def test_a_plan_has_what_dp_accounting_says():
    assert planned("--noise", "4", "--rounds", "100")["dp_accounting"] == pytest.approx(epsilon(4.0, 100), rel=1e-3)


def test_a_plan_is_a_small_table():
    assert "│ 6.003 │    100 │ 1e-05 │ 7.99886 │" in invoke("plan", "--epsilon", "8", "--rounds", "100").output


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "error: plan: expected two of --epsilon, --rounds and --noise, got 0"),
        (["--epsilon", "8"], "error: plan: expected two of --epsilon, --rounds and --noise, got 1"),
        (
            ["--epsilon", "8", "--rounds", "3", "--noise", "1"],
            "error: plan: expected two of --epsilon, --rounds and --noise, got 3",
        ),
        (["--epsilon", "-1", "--rounds", "3"], "error: --epsilon: expected a value from 1e-09 to 1e+09, got -1"),
        (["--epsilon", "nan", "--rounds", "3"], "error: --epsilon: expected a value from 1e-09 to 1e+09, got nan"),
        (["--noise", "1e-9", "--rounds", "3"], "error: --noise: expected a value from 0.001 to 1e+09, got 1e-09"),
        (["--noise", "1", "--rounds", "0"], "error: --rounds: expected a value from 1 to 1e+09, got 0"),
        (
            ["--noise", "1", "--rounds", "1", "--delta", "1"],
            "error: --delta: expected a value from 1e-30 to 0.5, got 1",
        ),
    ],
)
def test_a_plan_without_an_answer_is_a_line_and_exit_code_2(words, line):
    done = invoke("plan", *words)
    assert (done.exit_code, done.output) == (2, f"{line}\n")


@pytest.mark.parametrize(("extreme", "value"), [("--epsilon", "1e-9"), ("--epsilon", "1e9")])
def test_a_plan_for_an_extreme_budget_has_an_answer(extreme, value):
    assert invoke("plan", extreme, value, "--rounds", "1").exit_code == 0


def test_a_site_reads_what_it_has_spent(tmp_path):
    file = tmp_path / "site.yaml"
    privacy = {"clip": 1.0, "noise": 2.0, "epsilon": 9.0, "delta": 1e-6}
    file.write_text(yaml.safe_dump({"client": "home", "tasks": ["edge"], "state": ".", "privacy": privacy}))
    site = SiteConfig.load(file)
    for run, round in (("one", 0), ("one", 1), ("two", 0)):
        Ledger.of(site).charge(Sent(run=run, round=round, noise=2.0, digest=f"{run}{round}"), site.privacy)
    rows = json.loads(invoke("spent", str(file), "--json").stdout)
    assert [(row["run"], row["updates"], row["budget"]) for row in rows] == [
        ("one", 2, None),
        ("two", 1, None),
        ("all runs", 3, 9.0),
    ]
    assert rows[-1]["epsilon"] == pytest.approx(epsilon(2.0, 3, 1e-6))
