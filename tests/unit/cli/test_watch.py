import re
import shlex
from io import StringIO

import pytest
from rich.console import Console

from command import invoke, printed, refused
from fedhca2.reports.console import LiveStatus, follow
from fedhca2.reports.tracking import Scalar, scalars
from fedhca2.run_folder.folder import lock_folder
from made_run import made_run


@pytest.fixture
def events(tmp_path):
    """The events of an unfinished run."""
    return made_run(tmp_path, finished=False).events


def read_each_version(folder, *contents):
    """The events of each read of a run, whose file changes in between; it is finished when the file is at its last."""
    file, left = folder / "metrics.jsonl", [*contents, None]

    def write(seconds=0):
        file.write_bytes(left.pop(0))
        if left == [None]:
            (folder / "result.json").write_text("{}")

    write()
    lock = lock_folder(folder)
    reads = list(follow(folder, pause=write))
    lock.release()
    return reads


def test_only_whole_lines_are_read_and_each_once(tmp_path, events):
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    first, second = read_each_version(tmp_path, whole[: len(whole) // 2], whole)
    assert first + second == events


def test_events_that_were_taken_back_or_replaced_are_all_read_again(tmp_path, events):
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    others = [*lines[:5], *reversed(lines[6:])]  # more bytes than the nine lines, and without the last of them
    reads = read_each_version(tmp_path, *map(b"".join, (lines, lines[:5], [], lines[:9], others)))
    assert reads == [events, events[:5], [], events[:9], [*events[:5], *reversed(events[6:])]]


def test_a_run_that_nobody_works_on_is_not_waited_for(tmp_path, events):
    done = invoke("watch", tmp_path)
    assert done.exit_code == 1
    assert f"no process is working on it; continue with: fedhca2 resume {tmp_path}" in done.stderr


def test_a_finished_run_is_read_once_and_every_round_is_a_line_without_a_terminal(tmp_path):
    run = made_run(tmp_path)
    assert list(follow(tmp_path)) == [run.events]
    lines = printed("watch", tmp_path).splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == [f"fedhca2: round {n} of 3" for n in (1, 2, 3)]


def test_a_comparison_is_shown_run_by_run_and_sent_to_no_tracker(tmp_path):
    made_run(tmp_path / "local" / "seed-0", "local")
    made_run(tmp_path / "fedhca2" / "seed-0", finished=False)
    done = invoke("watch", tmp_path)
    assert done.exit_code == 1
    rows = re.findall(r"(local|fedhca2) *│ *3/3 .* (finished|interrupted) ", done.stdout)
    assert rows == [("local", "finished"), ("fedhca2", "interrupted")]
    line = refused("watch", tmp_path, "--track", "tensorboard=there")
    assert "--track tensorboard=there: expected the folder of one run" in line


def test_scores_losses_and_weights_are_scalars_and_scores_count_rounds_before_them(tmp_path):
    tags = {scalar.tag for event in made_run(tmp_path).events for scalar in scalars(event)}
    assert {"road/semseg/miou", "home/depth/loss", "weights/road/encoder", "weights/home/decoder.depth/1"} <= tags
    event = {"event": "metric", "round": 2, "client": "a", "task": "sal", "metric": "max_f", "value": 1.0}
    assert list(scalars(event)) == [Scalar("a/sal/max_f", 2, 1.0)]


def test_the_board_shows_the_last_scores_and_says_that_local_comes_first(tmp_path):
    made_run(tmp_path)
    shown = printed("watch", tmp_path, "--once")
    assert ("round 3 of 3" in shown, "40.0%" in shown) == (True, True)
    made_run(tmp_path / "baseline", "local", finished=False)
    (tmp_path / "result.json").unlink()
    console = Console(file=StringIO(), width=200)
    console.print(LiveStatus(made_run(tmp_path, finished=False)))
    assert "local baseline is trained first" in console.file.getvalue()


@pytest.mark.parametrize(
    ("words", "command"),
    [(["watch", "{run}"], r": (fedhca2 resume .*)$"), (["run", "demo", "--out", "{run}"], "`(.*)`")],
)
def test_a_printed_command_can_be_pasted(tmp_path, words, command):
    run = made_run(tmp_path / "été 🐈", finished=False).path
    (printed,) = re.findall(command, invoke(*(word.format(run=run) for word in words)).stderr)
    assert shlex.split(printed) == ["fedhca2", "resume", str(run)]
