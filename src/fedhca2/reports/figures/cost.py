"""What a run cost: seconds and bytes, by round and client."""

from fedhca2.reports.figures.figure import COLOURS, Figure, axes, line, round_axes
from fedhca2.run_folder.reader import RunFiles

MEBIBYTE = 2**20


def cost_figures(run: RunFiles) -> list[Figure]:
    """Seconds of each client and of the whole round, and bytes up and down, by round and in all."""
    events = run.of("client")
    if not events:
        return []
    clients = list(dict.fromkeys(event["client"] for event in events))
    seconds, moved = [], []
    for number, client in enumerate(clients):
        own = [event for event in events if event["client"] == client]
        rounds = [event["round"] + 1 for event in own]
        seconds.append(line(client, number, rounds, [event["seconds"] for event in own]))
        both = [(event["bytes_up"] + event["bytes_down"]) / MEBIBYTE for event in own]
        moved.append(line(client, number, rounds, both))
    whole = run.of("round")
    thick = {"color": "#777", "dash": "dot", "width": 3}
    rounds, values = [event["round"] + 1 for event in whole], [event["seconds"] for event in whole]
    seconds.append(line("whole round", 6, rounds, values, line=thick))
    return [
        Figure(
            "seconds",
            "Seconds by round",
            "Each client's own work, and the whole round; the last one evaluates alone.",
            seconds,
            round_axes(run.rounds + 1, "s"),
        ),
        Figure(
            "bytes",
            "Bytes by round",
            "What crossed for each client, up and down together.",
            moved,
            round_axes(run.rounds + 1, "MiB"),
        ),
        _totals(run, clients),
    ]


def _totals(run: RunFiles, clients: list[str]) -> Figure:
    bars = []
    for number, way in enumerate(("up", "down")):
        sums = [sum(e[f"bytes_{way}"] for e in run.of("client") if e["client"] == client) for client in clients]
        values = [total / MEBIBYTE for total in sums]
        bars.append({"type": "bar", "name": way, "x": clients, "y": values, "marker": {"color": COLOURS[number]}})
    layout = axes("", "MiB", barmode="group")
    return Figure("bytes-total", "Bytes in all", "Rows and numbers that each client sent and got.", bars, layout)
