"""Metrics, scores and gains as tables show them."""

from math import isfinite

from fedhca2.tasks import get_task

METRICS = {
    "miou": "mIoU",
    "miou_all_classes": "mIoU of all classes",
    "miou_of_images": "mIoU of images",
    "max_f": "maxF",
    "mean_error": "mErr",
    "rmse": "RMSE",
    "ods_f": "odsF",
}
UNKNOWN = "—"  # a score that is not known, or a gain over a score of 0
UNKNOWN_GAIN = "Δm is not known: a score is missing, or training alone came to 0, over which no gain can be measured."
ARROWS = {True: "↑", False: "↓"}


def metric_title(name: str) -> str:
    """A metric's name in a table or figure.

    >>> metric_title("miou"), metric_title("accuracy")
    ('mIoU', 'accuracy')
    """
    return METRICS.get(name, name)


def metric_heading(name: str, higher_is_better: bool) -> str:
    """A metric's name, and an arrow to where it is better.

    >>> metric_heading("rmse", higher_is_better=False)
    'RMSE ↓'
    """
    return f"{metric_title(name)} {ARROWS[higher_is_better]}"


def decimals(score: float) -> int:
    """How many decimals a score is shown with."""
    return 2 if abs(score) >= 1 else 3


def score_text(task: str, value: float, *, narrow: bool = False) -> str:
    """A score with its unit, where it is known; `narrow` for a column of the terminal, where digits matter more.

    >>> score_text("depth", 0.7124), score_text("depth", 0.7124, narrow=True), score_text("semseg", 13.5)
    ('0.712 m', '0.7124m', '13.50 %')
    """
    if not isfinite(value):
        return UNKNOWN
    unit = get_task(task).unit
    if narrow:
        return f"{value:.4g}{unit}" if abs(value) < 1 else f"{value:.2f}{unit}"
    return f"{value:.{decimals(value)}f} {unit}"


def gain_text(gain: float) -> str:
    """A relative gain in percent, where it is known: not over a score of 0.

    >>> gain_text(2.04)
    '+2.0 %'
    """
    return f"{gain:+.1f} %" if isfinite(gain) else UNKNOWN
