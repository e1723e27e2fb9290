"""How updates agree or conflict, and where they lie to each other."""

import numpy as np

from fedhca2.reports.figures.figure import DIVERGING, Figure, Slider, matrix, matrix_layout, thinned
from fedhca2.reports.figures.maps import Points, kind_of, map_figures
from fedhca2.reports.figures.members import by_members, spread
from fedhca2.run_folder.reader import Array, RunFiles

WORDS = {"rows": "updates", "differences": "models, less their mean"}


def conflict_figures(run: RunFiles) -> list[Figure]:
    """For encoders and decoders: cosines by round, and maps on which alike ones are near each other."""
    figures = []
    for part in ("encoder", "decoder"):
        found = [e for e in run.of("aggregation") if e["part"] == part and e["products"] and len(e["members"]) > 1]
        for group, (members, events) in enumerate(by_members(found)):
            what, mark = WORDS[events[0]["measure"]], f"{part}-{group}" if group else part
            shown = [events[i] for i in thinned(len(events))]
            states = [
                spread(cosines(np.array(event["products"]), event["measure"]), event["members"], members)
                for event in shown
            ]
            rounds, names = [str(event["round"] + 1) for event in shown], [run.short_name(name) for name in members]
            figures.append(_cosine_figure(states, rounds, names, mark, f"Cosines of {part} {what}"))
            points = Points(names, [kind_of(run, name) for name in members], rounds)
            figures += map_figures(states, points, mark, f"Map of {part} {what}")
    return figures


def cosines(products: Array, measure: str) -> Array:
    """Cosines from inner products; of models only their differences to the mean tell them apart.

    >>> cosines(np.array([[4.0, -2.0], [-2.0, 1.0]]), "rows").tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if measure == "differences":
        centre = np.eye(len(products)) - 1 / len(products)
        products = centre @ products @ centre
    lengths = np.sqrt(np.clip(products.diagonal(), 0, None))
    return np.clip(products / np.maximum(np.outer(lengths, lengths), np.finfo(float).tiny), -1, 1)


def _cosine_figure(states: list[Array], rounds: list[str], names: list[str], mark: str, title: str) -> Figure:
    trace = matrix(states[-1].tolist(), names, names, zmin=-1, zmax=1, colorscale=DIVERGING)
    steps = Slider("round", rounds, [{"z": [state.tolist()]} for state in states])
    note = "+1: they pull the same way; 0: they have nothing to do with each other; below 0: they conflict."
    return Figure(f"cosine-{mark}", title, note, [trace], matrix_layout(len(names)), wide=True, slider=steps)
