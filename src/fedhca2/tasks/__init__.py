"""All tasks by name, and what follows from a list of them."""

from collections.abc import Iterable, Mapping, Sequence

from fedhca2 import losses, metrics, painting
from fedhca2.config import suggest
from fedhca2.labels import IGNORE
from fedhca2.tasks.built_in import BUILT_IN
from fedhca2.tasks.task import LabelSpace, Task

__all__ = ["IGNORE", "TASKS", "LabelSpace", "Task", "get_task", "losses", "metrics", "painting"]

TASKS: dict[str, Task] = {task.name: task for task in BUILT_IN}


def crop_chooser(names: Iterable[str]) -> str | None:
    """The first of these names that is a task which chooses crops, or None.

    >>> crop_chooser(["image", "edge", "semseg"])
    'semseg'
    """
    return next((name for name in names if name in TASKS and TASKS[name].chooses_crops), None)


def skips_empty(tasks: Sequence[str]) -> bool:
    """Whether a client with exactly these tasks skips images in which they have nothing to label.

    >>> skips_empty(["human_parts"]), skips_empty(["human_parts", "sal"])
    (True, False)
    """
    return len(tasks) == 1 and TASKS[tasks[0]].skips_empty


def metrics_for(
    tasks: Iterable[str], spaces: Mapping[str, LabelSpace], chosen: Mapping[str, str]
) -> dict[str, metrics.Metric]:
    """The metric of each task: the one chosen for it, or its own."""
    return {
        task: TASKS[task].metrics[chosen[task]](spaces[task]) if task in chosen else TASKS[task].metric(spaces[task])
        for task in tasks
    }


def get_task(name: str) -> Task:
    """Look up a task by name.

    >>> get_task("detph")
    Traceback (most recent call last):
    ValueError: 'detph' is not a task. Did you mean 'depth'? (semseg, human_parts, sal, normals, ...)
    """
    if name not in TASKS:
        raise ValueError(f"{name!r} is not a task. {suggest(name, TASKS)}")
    return TASKS[name]
