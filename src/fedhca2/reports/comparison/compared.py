"""What a comparison reads of a run."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from fedhca2.tasks import TaskSet


class ComparedRun(Protocol):
    """A finished run to compare: its folder (`RunFiles`), or what somebody kept of it."""

    @property
    def path(self) -> object:
        """Its place, for messages."""

    @property
    def method(self) -> str:
        """The method's name."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings, as `Experiment.to_dict` returns them."""

    @property
    def finished_result(self) -> Mapping[str, Any]:
        """Scores in `clients`; `baseline` and, unless it is None, `delta_m` and `delta_m_by_client`."""

    @property
    def tasks(self) -> Mapping[str, tuple[str, ...]]:
        """The tasks of every client that was evaluated, in the order of the config."""

    @property
    def task_set(self) -> TaskSet:
        """The tasks that it knows."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kind of every client: its data set and tasks."""

    @property
    def several_of_a_kind(self) -> bool:
        """Whether some clients have the same data set and tasks."""

    def dataset(self, client: str) -> str:
        """A client's data set."""


Run = TypeVar("Run", bound=ComparedRun)
