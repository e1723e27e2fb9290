"""The built-in tasks by name, and everything needed to write your own."""

from fedhca2 import losses, metrics, painting
from fedhca2.labels import IGNORE
from fedhca2.tasks.built_in import TASKS, get_task
from fedhca2.tasks.task import LabelSpace, Task, TaskSet

__all__ = ["IGNORE", "TASKS", "LabelSpace", "Task", "TaskSet", "get_task", "losses", "metrics", "painting"]
