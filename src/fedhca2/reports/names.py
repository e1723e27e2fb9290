"""Formatting metrics, scores and gains for tables."""

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
    "map": "mAP",
    "mean_class_accuracy": "mean class accuracy",
    "pck": "PCK",
    "mae": "MAE",
}
UNKNOWN = "—"  # an unknown score, or a gain over a score of 0
UNKNOWN_GAIN = "Δm is unknown: a score is missing, or training alone scored 0, so no relative gain exists."
ARROWS = {True: "↑", False: "↓"}


def metric_title(name: str) -> str:
    """A metric's name in a table or figure.

    >>> metric_title("miou"), metric_title("accuracy")
    ('mIoU', 'accuracy')
    """
    return METRICS.get(name, name)


def metric_heading(name: str, higher_is_better: bool) -> str:
    """A metric's name, with an arrow in its better direction.

    >>> metric_heading("rmse", higher_is_better=False)
    'RMSE ↓'
    """
    return f"{metric_title(name)} {ARROWS[higher_is_better]}"


def decimals(score: float) -> int:
    """The number of decimals for a score."""
    return 2 if abs(score) >= 1 else 3


def score_text(task: str, value: float) -> str:
    """A score with its unit, or a dash if it is unknown.

    >>> score_text("depth", 0.7124), score_text("semseg", 13.5)
    ('0.712 m', '13.50 %')
    """
    return f"{value:.{decimals(value)}f} {get_task(task).unit}".rstrip() if isfinite(value) else UNKNOWN


def metric_axis(task: str, name: str) -> str:
    """A metric's name with its unit, if it has one, for the axis of a figure.

    >>> metric_axis("depth", "rmse"), metric_axis("regression", "rmse")
    ('RMSE (m)', 'RMSE')
    """
    unit = get_task(task).unit
    return f"{metric_title(name)} ({unit})" if unit else metric_title(name)


def gain_text(gain: float) -> str:
    """A relative gain in percent, or a dash if it is unknown, as over a score of 0.

    >>> gain_text(2.04)
    '+2.0 %'
    """
    return f"{gain:+.1f} %" if isfinite(gain) else UNKNOWN
