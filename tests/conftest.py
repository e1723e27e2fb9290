import gc
import os

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels for a GPU run on a CPU, slowly; set before they are imported
settings.load_profile("ci")  # the same examples each time; --hypothesis-profile=default draws new ones
torch.set_num_threads(1)  # there are as many workers as cores, or more
os.environ["OMP_NUM_THREADS"] = "1"  # also of the processes that tests start: more threads would only wait for a core
gc.disable()  # nothing that is imported becomes garbage: looking for it would take a third of the time to collect tests


def pytest_collection_modifyitems(items) -> None:
    """Put files with slow tests first, so that no worker is busy with one when the others have nothing left to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """From here on look for garbage again, but never among what was imported."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_notes(tmp_path_factory) -> None:
    """Code that tests run is not remembered in the home of whoever runs them."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def tell(record_property):
    """Adds a line to the table of attacks: the attacker, what it tried, the outcome, and how far the others then are
    from where they would be without it, as a share of where they are.
    """

    def add(adversary: str, attack: str, outcome: str, drift: float = 0.0) -> None:
        record_property("attack", [adversary, attack, outcome, f"{drift:.3g}"])

    return add


def pytest_terminal_summary(terminalreporter) -> None:
    """Print the table of all attacks, from all workers."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    properties_of_calls = [report.user_properties for report in reports if getattr(report, "when", "") == "call"]
    rows = [value for properties in properties_of_calls for name, value in properties if name == "attack"]
    rows = [["adversary", "attack", "outcome", "others' drift"], *rows] if rows else []
    widths = [min(max(map(len, column)), 80) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell[:width]:<{width}}" for cell, width in zip(row, widths, strict=True))
        terminalreporter.write_line("  ".join(cells).rstrip())
