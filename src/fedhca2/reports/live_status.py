"""How a run stands, as a table that changes: for following it in a terminal."""

from math import isfinite

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedhca2.reports.names import ARROWS, UNKNOWN, metric_title
from fedhca2.reports.page.tables import number
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline

WIDTH = 60


def _shown(loss: float | None) -> str:
    """A loss, if there is one."""
    if loss is None:
        return ""
    return f"{loss:.4f}" if isfinite(loss) else UNKNOWN


class LiveStatus:
    """Rounds done, time left, and every client's last loss and score."""

    def __init__(self, run: RunFiles) -> None:
        self.run = run
        self.done = 0
        self.seconds: dict[int, float] = {}
        self.losses: dict[tuple[str, str], float] = {}
        self.scores: dict[tuple[str, str], dict[str, float]] = {}
        self.refused: dict[str, str] = {}

    def add(self, event: Event) -> None:
        """Take note of an event."""
        match event["event"]:
            case "loss":
                self.losses[event["client"], event["task"]] = event["value"]
            case "metric":
                self.scores.setdefault((event["client"], event["task"]), {})[event["metric"]] = event["value"]
            case "round":
                self.done = event["round"] + 1
                self.seconds[event["round"]] = event["seconds"]
                self.refused = event["refused"]

    def __rich__(self) -> Group:
        """What a terminal shows."""
        left = self.run.rounds - self.done
        each = sum(self.seconds.values()) / len(self.seconds) if self.seconds else 0.0
        state = f"{self.run.method}: round {self.done} of {self.run.rounds}, {each:.1f} s each"
        state += f", {left * each:.0f} s left" if left else ", done"
        table = Table("client", "task", "loss", "metric", "score")
        for client, task in dict.fromkeys([*self.losses, *self.scores]):
            loss, scores = self.losses.get((client, task)), self.scores.get((client, task))
            cells = ["", ""]
            if scores:
                main = headline(task, scores)
                cells = [f"{metric_title(main.metric)} {ARROWS[main.higher_is_better]}", number(task, main.value)]
            table.add_row(client, task, _shown(loss), *cells)
        away = [Text(f"{client} was left out: {why}", "yellow") for client, why in self.refused.items()]
        filled = round(WIDTH * self.done / self.run.rounds)
        bar = Text("━" * filled, "blue") + Text("━" * (WIDTH - filled), "bright_black")
        return Group(Text(state, "bold"), bar, *self._before(), table, *away)

    def _before(self) -> list[Text]:
        """What happens while nothing is to be seen yet."""
        baseline = self.run.baseline
        if self.done or not baseline.path.is_dir() or baseline.finished:
            return []
        return [Text(f"The Local baseline is trained first: fedhca2 watch {baseline.path}")]
