"""What the terminal shows: a run as it goes, and text from elsewhere as it is."""

import re
import time
from io import StringIO

import pytest
from rich.console import Console

from fedhca2.reports.console import ConsoleWatcher
from fedhca2.run_folder.records import ServerRecord
from small_run import run_small, small


@pytest.mark.parametrize("why", ["[/red] is no markup", "[bold]nor is this[/bold]", "[link=https://example.org]here"])
def test_a_reason_is_shown_as_it_is(why):
    console = Console(file=StringIO(), width=120)
    with ConsoleWatcher(console) as watcher:
        watcher.started(small(rounds=2), {})
        watcher.aggregated(0, ServerRecord(0, (), {}, {"home": why}), 1.0)
    assert f"round 1: home was excluded: {why}" in console.file.getvalue()


@pytest.mark.parametrize(("seconds", "estimate"), [(100.0, "About 1 h 5 min left (39 rounds)."), (5.0, "")])
def test_a_long_run_says_after_its_first_round_how_long_it_will_take(seconds, estimate):
    console = Console(file=StringIO(), width=120)
    with ConsoleWatcher(console) as watcher:
        watcher.started(small(rounds=40), {})
        for round in range(2):
            watcher.aggregated(round, ServerRecord(round, (), {}, {}), seconds)
    assert [line for line in console.file.getvalue().splitlines() if "left (" in line] == [estimate] * bool(estimate)


class Unhurried(ConsoleWatcher):
    """Lets the terminal, which is drawn ten times a second, show every batch."""

    def batch(self, *args):
        super().batch(*args)
        time.sleep(0.2)


@pytest.mark.slow
def test_a_terminal_shows_bars_while_a_run_goes_on_and_none_after_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=StringIO(), width=120, force_terminal=True)
    with Unhurried(console) as watcher:
        run_small(small(rounds=2), tmp_path, watcher)
    shown = re.sub(r"\x1b\[[\d;]*m", "", console.file.getvalue())
    assert re.search(r"fedhca2: rounds.* 1/2 ", shown)
    assert re.search(r"  home .* 1/1 loss \d+\.\d{3}", shown)
    assert "\x1b[?25l" in shown  # the cursor is hidden
    after = shown[shown.rindex("\x1b[?25h") :]  # it is back, and the bars are wiped away line by line
    assert "rounds" not in after
    assert after.count("\x1b[2K") >= 1
