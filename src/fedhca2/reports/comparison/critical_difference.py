"""The critical-difference figure of a comparison: average ranks, and which of them are too close to call."""

from math import isfinite

from fedhca2.reports.comparison.gather import Comparison
from fedhca2.reports.comparison.significance import LEVEL, Ranking, rank
from fedhca2.reports.comparison.svg import svg_drawing, svg_line, svg_text

FILE = "critical-difference.svg"
STEP, AXIS = 60, 720  # pixels: a rank, and the most for all of them
LETTER, TOP, ROW, BAR = 7.2, 62, 22, 8  # pixels: a letter, the axis, a name, a group
TITLE = "Average ranks and their critical difference"


def ranking_of(comparison: Comparison) -> Ranking | None:
    """Rank the methods in every column with every seed that all of them have."""
    scores: dict[str, list[float]] = {method: [] for method in comparison.entries}
    for column in (column for column in comparison.columns if not column.is_gain):
        cells = {method: row[column].by_seed for method, row in comparison.entries.items()}
        for seed in sorted(set.intersection(*(set(cell) for cell in cells.values()))):
            if all(isfinite(cell[seed]) for cell in cells.values()):
                for method, cell in cells.items():
                    scores[method].append(cell[seed] if column.higher_is_better else -cell[seed])
    return rank(scores)


def ranking_note(ranking: Ranking) -> str:
    """How to read the figure, and what it assumes."""
    p = "p < 0.001" if ranking.p_value < 0.001 else f"p = {ranking.p_value:.3f}"
    difference = "a difference" if ranking.p_value < LEVEL else "no difference"
    return (
        f"Ranks (1 is the best) averaged over {ranking.rankings} rankings, one per column and seed. Friedman's test "
        f"finds {difference} between the methods ({p}). Methods joined by a bar are closer than the critical "
        f"difference (Nemenyi's test at {100 * LEVEL:g} %). Both tests take the rankings as independent, but the "
        "columns of a run share encoders and the seeds share a data set: they find differences too easily."
    )


def to_svg(ranking: Ranking) -> str:
    """Draw the average ranks on an axis, with a bar over methods that do not differ, as Demšar (2006) does."""
    names, count = list(ranking.ranks), len(ranking.ranks)
    labels = [f"{name} {value:.2f}" for name, value in ranking.ranks.items()]
    side = 30 + LETTER * max(map(len, labels))
    step = min(STEP, AXIS / (count - 1))
    width = 2 * side + step * max(count - 1, ranking.critical_difference)

    def x(value: float) -> float:
        return side + step * (value - 1)

    end = x(1 + ranking.critical_difference)
    parts = [svg_line(x(1), 22, end, 22), *(svg_line(edge, 18, edge, 26) for edge in (x(1), end))]
    parts += [svg_text(x(1), 13, f"critical difference {ranking.critical_difference:.2f}", "start")]
    parts += [svg_line(x(1), TOP, x(count), TOP)]
    for tick in range(1, count + 1):
        parts += [svg_line(x(tick), TOP - 5, x(tick), TOP), svg_text(x(tick), TOP - 10, str(tick), "middle")]
    groups = ranking.groups
    for number, group in enumerate(groups):
        y = TOP + BAR * (number + 1)
        parts.append(svg_line(x(ranking.ranks[group[0]]) - 4, y, x(ranking.ranks[group[-1]]) + 4, y, 4))
    first, half = TOP + BAR * (len(groups) + 1) + ROW, (count + 1) // 2
    for number, name in enumerate(names):
        at, left = x(ranking.ranks[name]), number < half
        y = first + ROW * (number if left else count - 1 - number)
        edge, anchor, shift = (side - 12, "end", -4) if left else (x(count) + 12, "start", 4)
        parts += [svg_line(at, TOP, at, y), svg_line(at, y, edge, y)]
        parts.append(svg_text(edge + shift, y + 4, labels[number], anchor))
    height = first + ROW * half
    return svg_drawing(width, height, f"{TITLE}: {', '.join(labels)}", parts)
