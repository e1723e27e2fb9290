"""The gallery: pictures and the page of a small run, made by the package itself when the site is built."""

from pathlib import Path

import fedhca2
from fedhca2.data.check import contact_sheet

SETTINGS = [
    *("rounds=4", "evaluate_every=1", "diagnostics.every=2", "method.groups=false"),
    *("training.batch_size=4", "training.schedule.warmup_epochs=0"),
    *("data.outdoor.train=80", "data.indoor.train=40", "data.outdoor.val=24", "data.indoor.val=24"),
    "clients=[{data: outdoor, split: [semseg, sal]}, {name: home, data: indoor, tasks: [semseg, depth, normals]}]",
]
TEXT = """\
# Gallery

The report and the pictures on this page come from one run of three clients, which was made with this site. It has few
rounds and images, so its scores mean little.

## The report of a run

`fedhca2 report RUN` writes a file that needs no network. Its tabs show results, learning curves, predictions, learned
weights, who helps whom, similarities of updates, attention and cost. <a href="gallery/report.html">Open it in its own
page</a>.

<iframe class="report" src="gallery/report.html" title="The report of a run" loading="lazy"></iframe>

## Predictions

`fedhca2 picture RUN --client NAME -o FILE` shows the input, the labels, and predictions before the first round and
after the last.

{pictures}

## Data

`fedhca2 data info EXPERIMENT` draws a few samples with their labels, here of the [rendered
scenes](data-kinds.md#rendered-scenes).

{samples}

## Comparisons

`fedhca2 compare` draws the methods' [average ranks](compare-methods.md#what-is-beyond-chance), and
`benchmarks/results.py` the figures of the [results](results.md).

![Average ranks of methods in scenes_1c](images/ranks-scenes_1c.svg)

![Gains over training alone, by the number of images per client](images/when-federation-helps.svg)
"""


def gallery_page(folder, extra):
    """The page. Its pictures go into a folder beside it, and the run's page into one that is copied as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    experiment = fedhca2.Experiment.load("demo", SETTINGS)
    run = small_run(experiment, folder.parents[2] / "run")
    run.report(extra / "docs" / "gallery" / "report.html")
    pictures = {f"predictions of {spec.name}": run.picture(spec.name) for spec in experiment.specs}
    samples = {f"samples of {name}": contact_sheet(data.open("val"), 3) for name, data in experiment.data.items()}
    shown = {"pictures": saved(pictures, folder), "samples": saved(samples, folder)}
    text = TEXT
    for place, links in shown.items():
        text = text.replace(f"{{{place}}}", links)
    return text


def small_run(experiment, folder):
    """The run, unless an earlier build has done it."""
    if (Path(folder) / "result.json").exists():
        return fedhca2.Run.open(folder)
    return fedhca2.run(experiment, folder, quiet=True)


def saved(pictures, folder):
    """Write pictures, and return Markdown that shows them."""
    lines = []
    for title, picture in pictures.items():
        path = folder / f"{title.replace(' ', '-')}.png"
        picture.save(path)
        lines.append(f"![{title}]({folder.name}/{path.name})")
    return "\n\n".join(lines)
