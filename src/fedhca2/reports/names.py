"""Names as the papers write them."""

METRICS = {"miou": "mIoU", "max_f": "maxF", "mean_error": "mErr", "rmse": "RMSE", "ods_f": "odsF"}
ARROWS = {True: "↑", False: "↓"}


def metric_title(name: str) -> str:
    """A metric's name in a table or figure.

    >>> metric_title("miou"), metric_title("accuracy")
    ('mIoU', 'accuracy')
    """
    return METRICS.get(name, name)
