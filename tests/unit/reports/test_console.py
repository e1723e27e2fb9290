"""What the terminal shows of text from elsewhere."""

from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedhca2.reports.console import ConsoleWatcher
from fedhca2.run_folder.records import ServerRecord


@pytest.mark.parametrize("why", ["[/red] is no markup", "[bold]nor is this[/bold]", "[link=https://example.org]here"])
def test_a_reason_is_shown_as_it_is(why):
    console = Console(file=StringIO(), width=120)
    with ConsoleWatcher(console) as watcher:
        watcher.started(SimpleNamespace(method_name="fedavg", rounds=2), {})
        watcher.aggregated(0, ServerRecord(0, (), {}, {"home": why}), 1.0)
    assert f"round 1: home was left out: {why}" in console.file.getvalue()
