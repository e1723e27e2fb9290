"""Numbers in words, in one way everywhere: counts, metrics, scores, gains, times and sizes."""

from math import floor, isfinite, log10

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


def counted(count: int, noun: str) -> str:
    """A number of things, with the noun in the singular or plural.

    >>> counted(1, "client"), counted(2, "training image"), counted(1200, "run")
    ('1 client', '2 training images', '1,200 runs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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
    return f"{metric_title(name)} {'↑' if higher_is_better else '↓'}"


def decimals(score: float) -> int:
    """The number of decimals that give a score three significant digits.

    >>> [f"{score:.{decimals(score)}f}" for score in (0.0712, 0.9996, 13.54, 99.96, 1234.5, 0.0)]
    ['0.0712', '1.00', '13.5', '100', '1234', '0.00']
    """
    rounded = abs(float(f"{score:.3g}"))
    return min(max(2 - floor(log10(rounded)), 0), 6) if rounded else 2


def score_text(unit: str, value: float) -> str:
    """A score with its unit, or a dash if it is unknown.

    >>> score_text("m", 0.7124), score_text("%", 13.5)
    ('0.712 m', '13.5%')
    """
    space = "" if unit in ("", "%", "°") else " "
    return f"{value:.{decimals(value)}f}{space}{unit}" if isfinite(value) else UNKNOWN


def gain_text(gain: float) -> str:
    """A relative gain, such as Δm, in percent, or a dash if it is unknown, as over a score of 0.

    >>> gain_text(2.04), gain_text(-25), gain_text(-0.004)
    ('+2.04%', '-25.0%', '0.00%')
    """
    if not isfinite(gain):
        return UNKNOWN
    text = f"{gain:+.{min(decimals(gain), 2)}f}%"
    return text if float(text[:-1]) else "0.00%"


def duration_text(seconds: float) -> str:
    """A time in the units that suit it.

    >>> duration_text(4.2), duration_text(125), duration_text(7380)
    ('4.2 s', '2 min 5 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size_text(count: float) -> str:
    """A number of bytes in three digits.

    >>> size_text(512), size_text(104_857_600)
    ('512 B', '100 MiB')
    """
    value, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.{decimals(value) if units[0] != 'B' else 0}f} {units[0]}"
