import re
import shlex
from io import StringIO

from rich.console import Console
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.reports.console import Follower, LiveStatus, follow
from fedhca2.reports.tracking import Scalar, scalars
from fedhca2.run_folder.folder import lock_folder
from fedhca2.run_folder.reader import RunFiles
from made_run import made_run


def test_a_finished_run_is_read_once(tmp_path):
    run = made_run(tmp_path)
    assert [event for events in follow(tmp_path) for event in events] == run.events


def test_a_running_one_is_followed_to_its_end(tmp_path):
    whole = made_run(tmp_path / "whole").events
    made_run(tmp_path / "run", finished=False)
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    written = lines[: len(lines) // 2]  # in the middle of a line
    (tmp_path / "run" / "metrics.jsonl").write_bytes(written)
    lock = lock_folder(tmp_path / "run")

    def meanwhile(seconds):
        (tmp_path / "run" / "metrics.jsonl").write_bytes(lines)
        (tmp_path / "run" / "result.json").write_text("{}")

    assert [event for events in follow(tmp_path / "run", pause=meanwhile) for event in events] == whole
    lock.release()


def test_a_run_that_nobody_works_on_is_not_waited_for(tmp_path):
    made_run(tmp_path, finished=False)
    done = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert done.exit_code == 1
    assert f"no process is working on it; continue with: fedhca2 resume {tmp_path}" in done.stderr


def test_every_round_is_a_line_without_a_terminal(tmp_path):
    made_run(tmp_path)
    done = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert [line.split(",")[0] for line in done.stdout.splitlines()[:3]] == [
        f"fedhca2: round {n} of 3" for n in (1, 2, 3)
    ]


def test_a_comparison_is_shown_run_by_run(tmp_path):
    made_run(tmp_path / "local" / "seed-0", "local")
    made_run(tmp_path / "fedhca2" / "seed-0", finished=False)
    done = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert done.exit_code == 1
    assert re.search(r"local/seed-0 .* finished", done.stdout)
    assert re.search(r"fedhca2/seed-0 .* round 3 of 3, stopped", done.stdout)


def test_a_comparison_cannot_be_sent_to_a_tracker(tmp_path):
    made_run(tmp_path / "local" / "seed-0", "local")
    done = CliRunner().invoke(app, ["watch", str(tmp_path), "--track", "tensorboard=there"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--track tensorboard=there: expected the folder of one run" in done.stderr


def test_events_that_were_taken_back_come_again(tmp_path):
    whole = made_run(tmp_path, finished=False).events
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)

    def rewound(seconds):
        (tmp_path / "metrics.jsonl").write_text("".join(lines[:5]))
        (tmp_path / "result.json").write_text("{}")

    lock = lock_folder(tmp_path)
    first, second = follow(tmp_path, pause=rewound)
    lock.release()
    assert (first, second) == (whole, whole[:5])


def test_events_in_the_place_of_others_are_read_from_the_start_of_a_line(tmp_path):
    made_run(tmp_path, finished=False)
    file = tmp_path / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:9]))
    follower = Follower(tmp_path)
    follower.look()
    file.write_text("".join([*lines[:5], *reversed(lines[6:])]))  # longer than before, and without the last line read
    assert follower.look() == RunFiles(tmp_path).events


def test_a_file_that_was_emptied_is_read_from_its_start(tmp_path):
    whole = made_run(tmp_path, finished=False).events
    content, follower = (tmp_path / "metrics.jsonl").read_bytes(), Follower(tmp_path)
    assert follower.look() == whole
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    assert follower.look() == []
    (tmp_path / "metrics.jsonl").write_bytes(content)
    assert follower.look() == whole


def test_every_score_loss_and_weight_is_a_scalar(tmp_path):
    run = made_run(tmp_path)
    found = {scalar.tag for event in run.events for scalar in scalars(event)}
    assert {"road/semseg/miou", "home/depth/loss", "weights/road/encoder", "weights/home/decoder.depth/1"} <= found


def test_a_score_belongs_to_the_rounds_before_it(tmp_path):
    event = {"event": "metric", "round": 2, "client": "a", "task": "sal", "metric": "max_f", "value": 1.0}
    assert list(scalars(event)) == [Scalar("a/sal/max_f", 2, 1.0)]


def test_the_board_shows_the_last_scores(tmp_path):
    run = made_run(tmp_path)
    board = LiveStatus(run)
    for event in run.events:
        board.add(event)
    console = Console(file=StringIO(), width=100)
    console.print(board)
    assert "round 3 of 3" in console.file.getvalue()
    assert "40.0%" in console.file.getvalue()


def test_the_board_says_that_local_comes_first(tmp_path):
    made_run(tmp_path / "baseline", "local", finished=False)
    console = Console(file=StringIO(), width=200)
    console.print(LiveStatus(made_run(tmp_path, finished=False)))
    assert "local baseline is trained first" in console.file.getvalue()


def test_the_command_shows_a_run(tmp_path):
    made_run(tmp_path)
    done = CliRunner().invoke(app, ["watch", str(tmp_path), "--once"])
    assert "round 3 of 3" in done.stdout


def test_the_command_refuses_what_is_no_run(tmp_path):
    assert CliRunner().invoke(app, ["watch", str(tmp_path)]).exit_code == 2


def test_a_printed_command_can_be_pasted(tmp_path):
    made_run(tmp_path / "été 🐈", finished=False)
    done = CliRunner().invoke(app, ["watch", str(tmp_path / "été 🐈")])
    assert shlex.split(done.stderr.split(": ")[-1]) == ["fedhca2", "resume", str(tmp_path / "été 🐈")]


def test_a_folder_that_is_taken_is_told_with_a_command_that_can_be_pasted(tmp_path):
    made_run(tmp_path / "été 🐈", finished=False)
    done = CliRunner().invoke(app, ["run", "demo", "--out", str(tmp_path / "été 🐈")])
    assert shlex.split(done.stderr.split("`")[1]) == ["fedhca2", "resume", str(tmp_path / "été 🐈")]
