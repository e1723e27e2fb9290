"""What a run cost: seconds and bytes of every client."""

from collections.abc import Sequence

from fedhca2.reports.figures.cast import Cast, cast_of
from fedhca2.reports.figures.curves import Series, drawn, lines, reading
from fedhca2.reports.figures.figure import GREY, Figure, Trace, axes, round_axes
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import RunFiles

MEBIBYTE = 2**20


def cost_figures(run: RunFiles) -> list[Figure]:
    """Draw seconds of each client and of the whole round, and bytes up and down, by round and in total."""
    events, cast = run.of("client"), cast_of(run)
    if not events:
        return []
    seconds: dict[str, Series] = {}
    moved: dict[str, Series] = {}
    for event in events:
        seconds.setdefault(event["client"], {})[event["round"] + 1] = event["seconds"]
        both = (event["bytes_up"] + event["bytes_down"]) / MEBIBYTE
        moved.setdefault(event["client"], {})[event["round"] + 1] = both
    rounds = range(1, run.rounds + 2)
    whole = {event["round"] + 1: event["seconds"] for event in run.of("round")}
    thick: Trace = {"line": {"color": GREY, "dash": "dot", "width": 3}, "mode": "lines"}
    times = [*lines(cast, seconds, rounds), *drawn("whole round", GREY, [whole], rounds, **thick)]
    note = "Each client's own work and, dotted, the whole round. The last round only evaluates."
    return [
        Figure(
            "seconds", "Seconds by round", f"{note} {reading(cast)}".strip(), times, round_axes(run.rounds + 1, "s")
        ),
        Figure(
            "bytes",
            "Bytes by round",
            f"Sent to and from each client; a gap is a round without it. {reading(cast)}".strip(),
            lines(cast, moved, rounds),
            round_axes(run.rounds + 1, "MiB"),
        ),
        _totals(cast, events),
    ]


def _totals(cast: Cast, events: Sequence[Event]) -> Figure:
    sums: dict[str, list[float]] = {client: [0.0, 0.0] for clients in cast.groups.values() for client in clients}
    for event in events:
        held = sums.setdefault(event["client"], [0.0, 0.0])
        held[0] += event["bytes_up"] / MEBIBYTE
        held[1] += event["bytes_down"] / MEBIBYTE
    bars = []
    for number, (way, shade) in enumerate((("up", 1.0), ("down", 0.55))):
        means = [sum(sums[client][number] for client in held) / len(held) for held in cast.groups.values()]
        marker = {"color": list(cast.colours.values()), "opacity": shade}
        hover = {"hovertemplate": f"%{{x}}: %{{y:.4g}} MiB {way}<extra></extra>"}
        bars.append({"type": "bar", "name": way, "x": list(cast.groups), "y": means, "marker": marker, **hover})
    layout = axes("", "MiB", barmode="group")
    layout["xaxis"] |= {"type": "category"}
    each = "Mean of the clients of a kind, in all rounds" if cast.by_kind else "All rounds"
    return Figure("bytes-total", "Bytes in total", f"{each}: up (left) and down (right, paler).", bars, layout)
