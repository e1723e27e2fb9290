"""Definitions in dictionaries: inputs that are text, as bags of hashed words.

Three publishers have entries of their own. One records what kind of thing an entry is, one whether it has a Latin name,
and one both. The definitions are WordNet's, which timm carries for ImageNet's classes. `dictionaries.yaml` beside this
file is the experiment:

    fedhca2 compare examples/dictionaries.yaml --methods local,fedper,fedpull,fedhca2,pooled --seeds 3
"""

import re
from importlib.resources import files
from zlib import crc32

import numpy as np

# WordNet numbers its entries by kind: the first number of each kind, and the first one after it.
KINDS = {
    "animal": range(1_313_000, 2_666_000),
    "thing": range(2_666_000, 4_616_000),
    "food": range(7_555_000, 7_960_000),
    "person": range(9_605_000, 10_820_000),
    "plant": range(11_530_000, 13_150_000),
}
LATIN = re.compile(r"[A-Z][a-z]+ [a-z]+")


class Definitions:
    """`count` entries of one publisher for training, and the same 1,000 others of all publishers for validation."""

    shape = (2048,)  # a word's number is its hash
    labels = {"kind": tuple(KINDS), "latin": ("no", "yes")}  # noqa: RUF012
    cache = True  # the default of the setting

    def __init__(self, split: str, publisher: int = 0, count: int = 300) -> None:
        texts, names = (self.read(f"imagenet_synset_to_{column}.txt") for column in ("definition", "lemma"))
        kinds = {id: next((i for i, kind in enumerate(KINDS.values()) if int(id[1:]) in kind), None) for id in texts}
        known = np.random.default_rng(0).permutation([id for id, kind in kinds.items() if kind is not None])
        self.ids = known[-1000:] if split == "val" else known[publisher * count : (publisher + 1) * count]
        self.samples = [
            {"input": self.encode(texts[id]), "kind": kinds[id], "latin": bool(LATIN.search(names[id]))}
            for id in self.ids
        ]

    def read(self, file: str) -> dict[str, str]:
        """A column of WordNet's entries by their number."""
        lines = files("timm").joinpath("data", "_info", file).read_text("utf-8").splitlines()
        return dict(line.split("\t") for line in lines)

    def encode(self, text: str) -> np.ndarray:
        """1 for every word of a text."""
        bag = np.zeros(self.shape, np.float32)
        bag[[crc32(word.encode()) % len(bag) for word in re.findall(r"\w+", text.lower())]] = 1
        return bag

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, object]:
        return self.samples[index]
