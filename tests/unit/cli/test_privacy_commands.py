import pytest
import yaml

from command import as_json, printed, refused
from fedhca2.clients.privacy import epsilon
from fedhca2.federation.flower.deploy.site_config import Ledger, Sent, SiteConfig


def test_a_plan_computes_noise_budget_or_rounds_from_the_other_two_and_shows_a_small_table():
    plan = as_json("privacy", "plan", "--epsilon", 8, "--rounds", 100, "--delta", 1e-6)
    assert plan["epsilon"] == epsilon(plan["noise"], 100, 1e-6) == pytest.approx(8, rel=1e-3)
    plan = as_json("privacy", "plan", "--noise", 4, "--rounds", 100)
    assert plan["epsilon"] == epsilon(4.0, 100) == pytest.approx(plan["dp_accounting"], rel=1e-3)
    assert as_json("privacy", "plan", "--noise", 4, "--epsilon", 8)["rounds"] == 44
    for extreme in ("1e-9", "1e9"):
        printed("privacy", "plan", "--epsilon", extreme, "--rounds", 1)
    assert "│ 6.003 │    100 │ 1e-05 │ 7.99886 │" in printed("privacy", "plan", "--epsilon", 8, "--rounds", 100)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "plan: expected two of --epsilon, --rounds and --noise, got 0"),
        ("--epsilon 8", "plan: expected two of --epsilon, --rounds and --noise, got 1"),
        ("--epsilon 8 --rounds 3 --noise 1", "plan: expected two of --epsilon, --rounds and --noise, got 3"),
        ("--epsilon -1 --rounds 3", "--epsilon: expected a value from 1e-09 to 1e+09, got -1"),
        ("--epsilon nan --rounds 3", "--epsilon: expected a value from 1e-09 to 1e+09, got nan"),
        ("--noise 1e-9 --rounds 3", "--noise: expected a value from 0.001 to 1e+09, got 1e-09"),
        ("--noise 1 --rounds 0", "--rounds: expected a value from 1 to 1e+09, got 0"),
        ("--noise 1 --rounds 1 --delta 1", "--delta: expected a value from 1e-30 to 0.5, got 1"),
    ],
)
def test_a_plan_without_an_answer_is_a_line_and_exit_code_2(words, line):
    assert refused("privacy", "plan", *words.split()) == f"error: {line}\n"


def test_a_site_reads_what_it_has_spent(tmp_path):
    file = tmp_path / "site.yaml"
    privacy = {"clip": 1.0, "noise": 2.0, "epsilon": 9.0, "delta": 1e-6}
    file.write_text(yaml.safe_dump({"client": "home", "tasks": ["edge"], "state": ".", "privacy": privacy}))
    site = SiteConfig.load(file)
    for run, round in (("one", 0), ("one", 1), ("two", 0)):
        Ledger.of(site).charge(Sent(run=run, round=round, noise=2.0, digest=f"{run}{round}"), site.privacy)
    rows = as_json("privacy", "spent", file)
    totals = [(row["run"], row["updates"], row["budget"]) for row in rows]
    assert totals == [("one", 2, None), ("two", 1, None), ("all runs", 3, 9.0)]
    assert rows[-1]["epsilon"] == pytest.approx(epsilon(2.0, 3, 1e-6))
