"""Federated multi-task learning for sites with different tasks.

>>> import fedhca2
>>> run = fedhca2.run(fedhca2.Experiment.load("demo", ["rounds=5"]), "runs/first")  # doctest: +SKIP
>>> run.result.delta_m, run.report()  # doctest: +SKIP

`docs/api.md` lists the public names: these, and those of `fedhca2.methods`, `fedhca2.tasks`, `fedhca2.data` and
`fedhca2.flower`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedhca2.version import __version__

if TYPE_CHECKING:
    from fedhca2.deployment import Trained
    from fedhca2.errors import UserError
    from fedhca2.experiment import Experiment
    from fedhca2.methods import METHODS, Method
    from fedhca2.records import Records
    from fedhca2.reports.comparison import leaderboard
    from fedhca2.run_folder.result import Result
    from fedhca2.runs import Run, compare, resume, run
    from fedhca2.tasks import TASKS, Task

__all__ = [
    "METHODS",
    "TASKS",
    "Experiment",
    "Method",
    "Records",
    "Result",
    "Run",
    "Task",
    "Trained",
    "UserError",
    "__version__",
    "compare",
    "leaderboard",
    "resume",
    "run",
]

_HOMES = {
    "deployment": ("Trained",),
    "errors": ("UserError",),
    "experiment": ("Experiment",),
    "methods": ("METHODS", "Method"),
    "records": ("Records",),
    "reports.comparison": ("leaderboard",),
    "run_folder.result": ("Result",),
    "runs": ("Run", "compare", "resume", "run"),
    "tasks": ("TASKS", "Task"),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import fedhca2` alone is fast."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"fedhca2.{module}"), name)
    raise AttributeError(f"module 'fedhca2' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
