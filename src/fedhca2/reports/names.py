"""Names as the papers write them."""

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
