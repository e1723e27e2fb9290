"""The built-in tasks by name, and everything needed to write your own."""

from fedhca2 import losses, metrics, painting
from fedhca2.config import suggest
from fedhca2.labels import IGNORE
from fedhca2.tasks.built_in import BUILT_IN
from fedhca2.tasks.task import LabelSpace, Task, TaskSet

__all__ = ["IGNORE", "TASKS", "LabelSpace", "Task", "TaskSet", "get_task", "losses", "metrics", "painting"]

TASKS = TaskSet(BUILT_IN)


def get_task(name: str) -> Task:
    """Look up a built-in task by name.

    >>> get_task("detph")
    Traceback (most recent call last):
    ValueError: 'detph' is not a task. Did you mean 'depth'? (semseg, human_parts, sal, normals, ...)
    """
    if name not in TASKS:
        raise ValueError(f"{name!r} is not a task. {suggest(name, TASKS)}")
    return TASKS[name]
