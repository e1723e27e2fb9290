"""What the terminal shows: a run as it goes, and text from elsewhere as it is."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
import time
from contextlib import suppress
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


class Screen:
    """A terminal of 120 columns, and what was written to it."""

    def __init__(self):
        self.reading, self.writing = pty.openpty()
        fcntl.ioctl(self.writing, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.text = b""

    def __enter__(self):
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.file = os.fdopen(self.writing, "w")
        return self

    def __exit__(self, *_):
        self.file.close()
        self.reader.join()

    def read(self):
        with suppress(OSError):  # the end, when the other side is closed
            while output := os.read(self.reading, 4096):
                self.text += output
        os.close(self.reading)


@pytest.mark.slow
class Unhurried(ConsoleWatcher):
    """Lets the terminal, which is drawn ten times a second, show every batch."""

    def batch(self, *args):
        super().batch(*args)
        time.sleep(0.2)


def test_a_terminal_shows_bars_while_a_run_goes_on_and_none_after_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with Screen() as screen, Unhurried(Console(file=screen.file)) as watcher:
        run_small(small(rounds=2), tmp_path, watcher)
    shown = re.sub(rb"\x1b\[[\d;]*m", b"", screen.text).decode()
    assert re.search(r"fedhca2: rounds.* 1/2 ", shown)
    assert re.search(r"  home .* 1/1 loss \d+\.\d{3}", shown)
    assert "\x1b[?25l" in shown  # the cursor is hidden
    after = shown[shown.rindex("\x1b[?25h") :]  # it is back, and the bars are wiped away line by line
    assert "rounds" not in after
    assert after.count("\x1b[2K") >= 1
