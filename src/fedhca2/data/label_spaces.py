"""The classes and label spaces of PASCAL-Context and NYUD-v2, and of the rendered scenes that resemble them."""

from typing import Literal

from fedhca2.tasks import LabelSpace

PASCAL_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
PERSON = PASCAL_CLASSES.index("person")
PASCAL_LABELS = {
    "semseg": LabelSpace(names=PASCAL_CLASSES),
    "human_parts": LabelSpace(
        names=("background", "head", "torso", "upper arms", "lower arms", "upper legs", "lower legs")
    ),
    "sal": LabelSpace(),
    "normals": LabelSpace(),
    "edge": LabelSpace(edge_tolerance=0.0075),
}
PART_CLASS = {  # PASCAL-Part's names of a person's parts
    **dict.fromkeys(("hair", "head", "lear", "rear", "lebrow", "rebrow", "leye", "reye", "mouth", "nose"), 1),
    **dict.fromkeys(("neck", "torso"), 2),
    **dict.fromkeys(("luarm", "ruarm"), 3),
    **dict.fromkeys(("llarm", "rlarm", "lhand", "rhand"), 4),
    **dict.fromkeys(("luleg", "ruleg"), 5),
    **dict.fromkeys(("llleg", "rlleg", "lfoot", "rfoot"), 6),
}

NYUD_CLASSES = (
    *("wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf"),
    *("picture", "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror", "floor mat"),
    *("clothes", "ceiling", "books", "refrigerator", "television", "paper", "towel", "shower curtain", "box"),
    *("whiteboard", "person", "night stand", "toilet", "sink", "lamp", "bathtub", "bag", "otherstructure"),
    *("otherfurniture", "otherprop"),
)
NYUD_LABELS = {
    "semseg": LabelSpace(names=NYUD_CLASSES),
    "normals": LabelSpace(),
    "edge": LabelSpace(edge_tolerance=0.011),
    "depth": LabelSpace(),
}

Domain = Literal["outdoor", "indoor"]
SCENE_LABELS: dict[Domain, dict[str, LabelSpace]] = {  # also which things are in sight, and how many people
    "outdoor": {**PASCAL_LABELS, "things": LabelSpace(names=PASCAL_CLASSES), "people": LabelSpace(names=("people",))},
    "indoor": {**NYUD_LABELS, "things": LabelSpace(names=NYUD_CLASSES)},
}
CONTEXT_IDS = {  # of rendered things in a LabelMap, numbered as PASCAL-Context numbers them
    "aeroplane": 2, "bottle": 34, "building": 44, "bus": 45, "car": 59, "chair": 72, "cow": 98, "dog": 113,
    "fence": 144, "grass": 187, "ground": 189, "mountain": 259, "person": 284, "pottedplant": 308, "road": 324,
    "rock": 326, "sheep": 347, "sidewalk": 354, "sky": 360, "snow": 366, "diningtable": 397, "tree": 420,
    "wall": 440, "water": 445,
}  # fmt: skip
