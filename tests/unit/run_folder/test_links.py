"""A run's folder may come from anyone: a link in it must not lead a writer elsewhere."""

import os
import shutil

import pytest

from fedhca2.errors import UserError
from fedhca2.federation.flower.local import resume_over_flower
from fedhca2.run_folder.writer import join_baseline
from small_run import Silent, resume_small, small, tree

FILES = ["config.yaml", "metrics.jsonl", "result.json", "partition.json", "report.html", ".lock", "tracking.json"]
FOLDERS = ["checkpoints", "checkpoints/round-000001", "models", "samples", "baseline"]
FOLDERS += [f"checkpoints/{name}" for name in (".new", ".rows", ".states")]


@pytest.fixture
def trained(once):
    return once(small(rounds=1))


@pytest.fixture
def linked(trained, tmp_path):
    """A function that puts a link to something elsewhere, with the same content, into a copy of a run."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    def link(name):
        shutil.copytree(trained, run)
        if (run / name).exists():
            (run / name).rename(elsewhere)
        if name in FILES:
            elsewhere.touch()
        else:
            elsewhere.mkdir(exist_ok=True)
            (elsewhere / "precious").write_text("data")
            elsewhere.chmod(0o755)
        (run / name).symlink_to(elsewhere)
        return run, elsewhere

    return link


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_a_run_with_a_link_is_not_resumed(linked, name):
    run, elsewhere = linked(name)
    before = tree(elsewhere)
    with pytest.raises(UserError, match=f"{name}: expected a file or a folder of the run, got a link"):
        resume_small(run, ["rounds=2"])
    assert tree(elsewhere) == before


def test_a_run_with_a_link_is_not_compared(linked, trained):
    run, _ = linked("models")
    with pytest.raises(UserError, match="models: expected a file or a folder"):
        join_baseline(run, trained)


def test_a_local_federation_whose_sites_have_a_link_is_not_resumed(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run.sites").mkdir()
    (tmp_path / "run.sites" / "road.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"road\.yaml: expected a file"):
        resume_over_flower(tmp_path / "run", watcher=Silent())


def test_a_pipe_is_not_waited_for(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "run" / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics\.jsonl: expected a file"):
        resume_small(tmp_path / "run", ["rounds=2"])


def test_a_run_may_be_reached_through_a_link(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert resume_small(tmp_path / "link", ["rounds=2"]).rounds == 2
