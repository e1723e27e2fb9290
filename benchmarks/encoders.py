"""Which encoders of timm work here: `python benchmarks/encoders.py > docs/encoders.md`.

A small model of every family of timm is built, gives its maps, and trains one step of segmentation.
"""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import timm
import torch

from fedhca2.clients.training import Learner, Training, set_mode, take_step
from fedhca2.data.batches import Batch
from fedhca2.models import ModelConfig, build_model
from fedhca2.models.layers import STRIDES

SIZE = (64, 64)
CLASSES = 5
MOST = 60e6  # parameters of a model that is tried
OUTSIDE = ("test_",)  # timm's own test models
# Words in the names of small models, and how many of a family are measured to find its smallest.
WORDS = (
    "atto",
    "femto",
    "pico",
    "nano",
    "micro",
    "mini",
    "xxs",
    "_xs",
    "tiny",
    "_050",
    "small",
    "18",
    "_b0",
    "_s0",
    "_m0",
    "_t0",
)
TRIED = 6
PAGE = """\
# Encoders that are known to work

{good} of the {count} families of models in timm {version} work as `model.encoder.name`. One small model of
each, with at most {most:.0f} million parameters, was tested: it trained one step with images of {height}×{width}
(CPU, torch {torch}). Larger models of a family work in the same way. You can try any other name in
`timm.list_models()`: it is tested before training, and refused in one line if it does not fit the images.

`python benchmarks/encoders.py > docs/encoders.md` makes this page.

| family | encoder | parameters | maps | s for a step |
| --- | --- | ---: | --- | ---: |
{lines}

<details>
<summary>Families that do not work with images of {height}×{width}</summary>

| family | encoder | reason |
| --- | --- | --- |
{refused}

</details>
"""
# What timm's errors mean.
REASONS = {
    "strides": "its maps have other strides than 4, 8, 16 and 32",
    "features_only": "timm gives none of its maps",
    "dynamic_img_size": "accepts images of one size only",
    "size of tensor": "needs images of the size that it was made for",
    "invalid for input": "needs images of the size that it was made for",
    "Kernel size": "needs larger images",
}


@dataclass(frozen=True)
class Tried:
    """An encoder that was tried; `fault` says why it does not work."""

    family: str
    name: str
    parameters: int = 0
    maps: tuple[str, ...] = ()
    seconds: float = 0.0
    fault: str = ""


def try_encoder(family: str, name: str) -> Tried:
    """Build an encoder, look at its maps, and train a step."""
    try:
        model = build_model(
            ModelConfig.model_validate({"encoder": {"name": name}}), {"semseg": CLASSES}, SIZE, seed=0, client=""
        )
        parameters = sum(parameter.numel() for parameter in model.encoder.parameters())
        dice = torch.Generator().manual_seed(0)
        image = torch.randn(2, 3, *SIZE, generator=dice)
        label = torch.randint(CLASSES, (2, 1, *SIZE), generator=dice).byte()
        set_mode(model, frozenset())
        with torch.no_grad():
            maps = tuple(f"{map.shape[1]}×{map.shape[2]}×{map.shape[3]}" for map in model.encoder(image))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer, began = Learner(model, Training(learning_rate=1e-3)).optimizer, perf_counter()
        losses = take_step(model, optimizer, Batch(image, {"semseg": label}), "fp32")
        seconds = perf_counter() - began
        moved = any(not old.equal(new) for old, new in zip(before, model.parameters(), strict=True))
        if not moved or not torch.isfinite(losses["semseg"]):
            raise ValueError(f"the loss is {float(losses['semseg'])}, and parameters {'moved' if moved else 'stayed'}")
        sizes = [int(map.rpartition("×")[2]) for map in maps]
        if sizes != [SIZE[1] // stride for stride in STRIDES]:
            raise ValueError(f"expected maps at strides 4, 8, 16 and 32, got {', '.join(maps)}")
    except Exception as error:  # timm's models raise anything
        return Tried(family, name, fault=" ".join(str(error).split())[:160] or type(error).__name__)
    return Tried(family, name, parameters, maps, seconds)


def smallest() -> Iterator[tuple[str, str]]:
    """A small model of every family."""
    for family in timm.list_modules():
        sizes = {}
        names = [name for name in timm.list_models(module=family) if not name.startswith(OUTSIDE)]
        named = [name for name in names if any(word in name for word in WORDS)]
        for name in (named or names)[:TRIED]:
            try:
                with torch.device("meta"):
                    sizes[name] = sum(parameter.numel() for parameter in timm.create_model(name).parameters())
            except Exception:  # some compute values when they are made
                continue
        if sizes and min(sizes.values()) <= MOST:
            yield family, min(sizes, key=lambda name: (sizes[name], name))


def reason(fault: str) -> str:
    """An error in words."""
    return next((words for part, words in REASONS.items() if part in fault), "fails in its own code")


def page(encoders: list[Tried]) -> str:
    """The page of the documentation."""
    good = [one for one in encoders if not one.fault]
    lines = [
        f"| {one.family} | `{one.name}` | {one.parameters / 1e6:.1f} M | {', '.join(one.maps)} | {one.seconds:.2f} |"
        for one in good
    ]
    refused = [f"| {one.family} | `{one.name}` | {reason(one.fault)} |" for one in encoders if one.fault]
    about = {"version": timm.__version__, "torch": torch.__version__.partition("+")[0], "most": MOST / 1e6}
    return PAGE.format(
        **about,
        height=SIZE[0],
        width=SIZE[1],
        good=len(good),
        count=len(encoders),
        lines="\n".join(lines),
        refused="\n".join(refused),
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    encoders = []
    for family, name in smallest():
        encoders.append(try_encoder(family, name))
        print(encoders[-1], file=sys.stderr, flush=True)
    print(page(encoders), end="")
