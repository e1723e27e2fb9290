"""What a run over Flower records: who was late, away, failed or refused, its baseline, the privacy it spent."""

from io import StringIO

import pytest
from federations import Federation, altered, failing, in_memory, is_order, small_experiment
from rich.console import Console

from fedhca2.cli.run import conclude
from fedhca2.clients.privacy import DELTA, epsilon
from fedhca2.federation.flower.deploy.site_config import Ledger, SiteScores, cost
from fedhca2.federation.run import run
from fedhca2.reports.figures.groups import list_exclusions
from fedhca2.reports.figures.transfer import transfer_figures
from fedhca2.reports.page.tables import reasons_tables
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher

pytestmark = pytest.mark.slow
HOMES = [{"name": name, "data": "indoor", "tasks": ["depth", "normals"]} for name in ("home", "house", "hut")]
OUTDOOR = {"data": "outdoor", "split": ["semseg", "normals"]}


class Joining(Watcher):
    """Lets nodes join after the first round, and take part from then on."""

    def __init__(self, grid, nodes):
        self.grid, self.nodes = grid, nodes

    def aggregated(self, round, *_):
        if round == 0:
            self.grid.apps.update(self.nodes)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A run with a site that is late, one that fails, one that is refused and one that is offline."""
    indoor = {"kind": "scenes", "domain": "indoor", "size": [32, 32], "train": 6, "val": 1}
    outdoor = indoor | {"domain": "outdoor", "train": 4}
    experiment = small_experiment(data={"indoor": indoor, "outdoor": outdoor}, clients=[OUTDOOR, *HOMES], rounds=1)
    found = Federation(experiment, tmp_path_factory.mktemp("record"))
    found.set_up("house", tasks=("depth",))
    found.grid.leave("hut")
    found.grid.silent = {"outdoor-normals"}
    found.grid.replace("home", lambda app: failing(app, is_order))
    found.run(deadline=3, min_clients=1, retries=0)
    return found


def test_a_round_names_the_sites_that_were_late_away_failed_and_refused(record):
    away = next(event["refused"] for event in record.events if event["event"] == "round")
    assert away["outdoor-normals"] == "no reply in time"
    assert away["hut"] == "offline"
    assert "the disk is full" in away["home"]
    assert "(tasks in site.yaml)" in away["house"]


def test_the_page_names_them_too(record):
    excluded = {client for client, *_ in list_exclusions(RunFiles(record.out))}
    assert {"outdoor-normals", "hut", "home", "house"} <= excluded


@pytest.fixture(scope="module", params=[{}, {"[/red]": {"rmse": 1.0}}, {"depth": {}, "normals": {}}, [[]]])
def spoilt(request, tmp_path_factory):
    """A run in which a site reports scores after the last round that it was not asked for."""
    found = Federation(small_experiment(rounds=1), tmp_path_factory.mktemp("spoilt"))

    def change(request_header, _):
        return {"metrics": request.param} if request_header["order"]["finish"] else {}

    found.grid.replace("home", lambda app: altered(change, app, "train"))
    return found, found.run()


def test_scores_that_are_refused_lose_nobody_elses_and_are_not_logged(spoilt):
    found, result = spoilt
    others = ["outdoor-semseg", "outdoor-normals"]
    assert (list(result.clients), list(result.missing)) == (others, ["home"])
    final = [event for event in found.events if event.get("round") == 1]
    assert {event["client"] for event in final if event["event"] in ("metric", "client")} == {*others}


def test_the_page_and_the_console_name_the_client_without_scores(spoilt):
    found, result = spoilt
    console = Console(file=StringIO(), width=200)
    conclude(console, result, found.out)
    assert "home has no final scores: " in console.file.getvalue()
    assert list_exclusions(RunFiles(found.out))[-1][0] == "home"
    assert "home" in (found.out / "report.html").read_text()


def test_what_a_refused_reply_says_is_not_logged(tmp_path):
    found = Federation(small_experiment(rounds=1), tmp_path)
    spoil = {"losses": {"depth": 1.0}, "seconds": "[/]"}
    found.grid.replace("home", lambda app: altered(spoil, app, "train"))
    found.run()
    assert "home" not in {e["client"] for e in found.events if e["event"] in ("loss", "metric", "client")}


def test_a_baseline_is_trained_over_flower(tmp_path):
    experiment = small_experiment(rounds=1, baseline=True)
    assert Federation(experiment, tmp_path).run().baseline == in_memory(experiment.with_method("local"))[1]


@pytest.fixture(scope="module")
def noised(tmp_path_factory):
    """The result of a run with noise in which one site missed two rounds, and its sites."""
    experiment = small_experiment(rounds=3, privacy={"clip": 1.0, "noise": 2.0})
    found = Federation(experiment, tmp_path_factory.mktemp("noised"))
    late = found.grid.leave("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedhca2.federation.flower.site_registry.NODES_EVERY", 0.0)
        return found.run(Joining(found.grid, late), min_clients=2), found.sites


def test_the_coordinator_counts_the_updates_that_each_site_has_sent_as_the_site_does(noised):
    result, sites = noised
    spent = result.privacy["clients"]
    updates = {name: found["updates"] for name, found in spent.items()}
    assert updates == {"home": 1, "outdoor-normals": 3, "outdoor-semseg": 3}
    for name, site in sites.items():
        assert cost(Ledger.of(site.config).entries(), DELTA) == pytest.approx(spent[name]["epsilon"])
    assert result.epsilon == epsilon(2.0, updates=3)  # the largest
    assert result.privacy["dp_accounting"] == pytest.approx(result.epsilon, rel=1e-6)


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    """A run with diagnostics, and sites that tell all scores, the final ones alone, and noised ones."""
    found = Federation(small_experiment(diagnostics={"every": 1}), tmp_path_factory.mktemp("diagnosed"))
    found.set_up("outdoor-semseg", scores=SiteScores(send="all"))
    found.set_up("home", scores=SiteScores(send="all", noise=2.0))
    found.run()
    return found


def effects(events):
    return {(e["round"], e["client"]): (e["before"], e["after"]) for e in events if e["event"] == "effect"}


def declined(found):
    return [(e["round"], e["client"], e["why"]) for e in found.events if e["event"] == "declined"]


def test_sites_that_send_scores_report_the_same_effects_as_one_process(diagnosed, tmp_path):
    run(diagnosed.experiment, tmp_path / "here", watcher=Watcher())
    here = effects(RunFiles(tmp_path / "here").events)
    pairs = [(1, "outdoor-semseg"), (2, "outdoor-semseg"), (2, "outdoor-normals")]
    assert effects(diagnosed.events) == {key: here[key] for key in pairs}
    assert declined(diagnosed) == [
        (1, "outdoor-normals", "losses stay at the site: it sends final (scores in site.yaml)"),
        (1, "home", "losses stay at the site: noise does not cover them"),
        (2, "home", "losses stay at the site: noise does not cover them"),
    ]
    files = RunFiles(diagnosed.out)
    assert not files.of("transfer")  # no update is sent to others for diagnostics
    assert [figure.id for figure in transfer_figures(files)] == ["transfer-gains", "pairs"]


@pytest.fixture(scope="module")
def reserved(tmp_path_factory):
    """A run that asks for heads and for scores in each round, with one site that keeps its heads and one its scores."""
    experiment = small_experiment(evaluate_every=1, method={"name": "fedhca2", "head": {"kind": "group_mean"}})
    found = Federation(experiment, tmp_path_factory.mktemp("reserved"))
    found.set_up("home", scores=SiteScores(send="none"))
    found.set_up("outdoor-normals", share=("encoder", "decoder"))
    return found, found.run(min_clients=2)


def test_a_site_that_refuses_heads_is_logged_with_the_key_that_allows_them(reserved):
    refused = [event["refused"] for event in reserved[0].events if event["event"] == "round"]
    why = "failed: this site does not allow it (share in site.yaml); its log says more"
    assert refused == [{"outdoor-normals": why}] * 2


def test_a_site_that_sends_no_scores_is_missing_only_from_the_results_and_the_page_says_why(reserved):
    found, result = reserved
    kept = "scores stay at the site: it sends none (scores in site.yaml)"
    final = "scores stay at the site: it sends final (scores in site.yaml)"
    assert declined(found) == [(1, "outdoor-semseg", final), (1, "home", kept)]
    assert (list(result.clients), result.missing["home"]) == (["outdoor-semseg"], kept)
    updates = [event["client"] for event in found.events if event["event"] == "loss" and event["round"] == 1]
    assert set(updates) == {"home", "outdoor-semseg"}
    *_, table = reasons_tables(RunFiles(found.out))
    assert ["home", "2", kept] in [[cell.text for cell in row] for row in table.rows]
