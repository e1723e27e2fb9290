"""The classes and label spaces of PASCAL-Context and NYUD-v2, which rendered scenes share."""

from fedhca2.tasks import LabelSpace

PASCAL_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
HUMAN_PARTS = ("background", "head", "torso", "upper arms", "lower arms", "upper legs", "lower legs")
NYUD_CLASSES = (
    *("wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf"),
    *("picture", "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror", "floor mat"),
    *("clothes", "ceiling", "books", "refrigerator", "television", "paper", "towel", "shower curtain", "box"),
    *("whiteboard", "person", "night stand", "toilet", "sink", "lamp", "bathtub", "bag", "otherstructure"),
    *("otherfurniture", "otherprop"),
)

PASCAL_LABELS = {
    "semseg": LabelSpace(len(PASCAL_CLASSES), PASCAL_CLASSES),
    "human_parts": LabelSpace(len(HUMAN_PARTS), HUMAN_PARTS),
    "sal": LabelSpace(),
    "normals": LabelSpace(),
    "edge": LabelSpace(edge_tolerance=0.0075),
}
NYUD_LABELS = {
    "semseg": LabelSpace(len(NYUD_CLASSES), NYUD_CLASSES),
    "normals": LabelSpace(),
    "edge": LabelSpace(edge_tolerance=0.011),
    "depth": LabelSpace(),
}
