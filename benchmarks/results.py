"""Everything in docs/results.md that is made from runs.

    python benchmarks/results.py run [PART …]    makes the runs that are missing, and records them
    python benchmarks/results.py add RUNS…       records the finished runs below these folders in benchmarks/results/
    python benchmarks/results.py page            makes the tables and figures of docs/results.md from the records

A run belongs to the embedded experiment that its config names, and replaces the record of an earlier run with its
experiment, settings and seed. The page compares a run with the record of Local that has its settings and seed. What
stands between `<!-- results: BLOCK … -->` and `<!-- end -->` is replaced; figures go to images/ beside the page. Blocks
name experiments as NAME or, with other settings, as NAME,KEY=VALUE.
"""

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

from gain_curve import gain_curve
from results_adding import add_runs
from results_jobs import CURVE_METHODS, PARTS, part
from results_of_papers import PAPER, SENSITIVITY
from results_records import RECORDS, read_records
from results_running import run_missing
from results_runs import ENCODER, METHOD, SIZES, Runs, encoder_of, images_per_client

from fedhca2.errors import UserError
from fedhca2.federation.stopping import Interrupted
from fedhca2.methods import METHODS
from fedhca2.reports.comparison import DELTA_M, LOCAL, SeedScores, gather
from fedhca2.reports.drawings import draw_ranks, ranking_note, ranking_of
from fedhca2.reports.layouts import marked_cell, marks_note, shown
from fedhca2.run_folder.result import overall_gain
from fedhca2.words import metric_heading

BLOCK = re.compile(r"(<!-- results: ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOT_RUN = "–"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
CURVE = "when-federation-helps"


class Page:
    """The blocks of a page. Each takes the words after its name and returns Markdown."""

    def __init__(self, runs):
        self.runs = runs
        self.compared = {}  # comparisons by experiment: several blocks show the same
        self.figures = {}  # SVG by name

    def filled(self, text):
        """The text of a page with its blocks made anew."""

        def made(block):
            what, *words = block[2].split()
            return f"{block[1]}{getattr(self, what)(*words)}\n{block[3]}"

        return BLOCK.sub(made, text)

    def comparison(self, name):
        """The methods of the catalogue with their defaults."""
        if name not in self.compared:
            runs = comparable(self.runs.plain(name))
            self.compared[name] = (gather(runs), runs) if runs else (None, [])
        return self.compared[name]

    def table(self, name):
        """One experiment: every method, kind of client and task."""
        comparison, runs = self.comparison(name)
        if not comparison:
            return f"*`{name}` was not run.*"
        scores = [column for column in comparison.columns if not column.is_gain]
        gains = [column for column in comparison.columns if column.is_gain]
        heads = ["method", *map(head, scores), *(f"{gain.metric}<br>% ↑" for gain in gains), "seeds", "s"]
        rows = []
        for method, row in comparison.entries.items():
            cells = [cell(comparison, method, column) for column in (*scores, *gains)]
            seconds = [run.line["seconds"] for run in runs if run.method == method]
            rows.append([f"`{method}`", *cells, str(len(row[scores[0]].values)), f"{mean(seconds):.0f}"])
        note = marks_note(comparison).replace("*", r"\*")
        return "\n\n".join(filter(None, [about(runs), markdown(heads, rows), note]))

    def summary(self, *names):
        """Δm of every method in every experiment, and in the paper's."""
        return gain_table({name: self.comparison(name)[0] for name in names}, METHODS)

    def shared(self, *names):
        """Δm of the methods that were run in all of these experiments; marks are corrected for their number."""
        runs = {name: comparable(self.runs.plain(name)) for name in names}
        methods = set.intersection(*({run.method for run in own} for own in runs.values()))
        if LOCAL not in methods or len(methods) == 1:
            return f"*{', '.join(f'`{name}`' for name in names)} were not run with the same methods.*"
        kept = {name: [run for run in own if run.method in methods] for name, own in runs.items()}
        return gain_table({name: gather(own) for name, own in kept.items()}, [m for m in METHODS if m in methods])

    def encoders(self, name):
        """FedHCA² with adapters or a frozen backbone: what crosses, and Δm over Local's whole encoder."""
        runs = self.runs.that_change(name, ENCODER)
        alone = {run.seed: run.scores for run in runs if run.method == LOCAL}
        rows = {}
        for run in (run for run in runs if run.method == "fedhca2" and run.seed in alone):
            gain = overall_gain(run.scores, alone[run.seed], run.task_set, run.kinds)
            rows.setdefault(encoder_of(run.settings), {})[run.seed] = gain, run.line["megabytes_up"]
        if len(rows) < 2:
            return f"*`{name}` was not run with other encoders.*"
        heads = ["encoder", "MB up per client and round", "Δm over Local's whole encoder<br>% ↑", "seeds"]
        cells = []
        for label, by_seed in rows.items():
            gains, up = zip(*by_seed.values(), strict=True)
            told = shown(SeedScores(dict(zip(by_seed, gains, strict=True))), DELTA_M)
            cells.append([label, f"{mean(up):.2f}", told, str(len(gains))])
        return markdown(heads, sorted(cells, key=lambda row: float(row[1]), reverse=True))

    def sensitivity(self, name):
        """FedHCA² with other settings."""
        runs = self.runs.that_change(name, METHOD)
        alone, ours = ([run for run in runs if run.method == method] for method in (LOCAL, "fedhca2"))
        if not alone or not ours:
            return f"*`{name}` was not run with other settings.*"
        rows = []
        for label, changes, paper in SENSITIVITY:
            gain = None
            if own := [run for run in ours if run.changes == changes]:
                gain = gather([*alone, *own]).entries["fedhca2"][DELTA_M]
            told = [shown(gain, DELTA_M), str(len(gain.values))] if gain else [NOT_RUN, NOT_RUN]
            rows.append([label, *told, NOT_RUN if paper is None else f"{paper:+.2f}"])
        return markdown(["`fedhca2`", "Δm<br>% ↑", "seeds", "paper"], rows)

    def curve(self, name):
        """Δm over images per client, as a figure and as a table."""
        sized = {}
        for run in self.runs.that_change(name, SIZES):
            if run.method in CURVE_METHODS:
                sized.setdefault(images_per_client(run.settings), []).append(run)
        sized = {images: comparable(runs) for images, runs in sorted(sized.items())}
        compared = {images: gather(runs) for images, runs in sized.items() if runs}
        if len(compared) < 2:
            return f"*`{name}` was not run with other numbers of images.*"
        curves = {
            method: {x: row[DELTA_M] for x, c in compared.items() if DELTA_M in (row := c.entries.get(method, {}))}
            for method in CURVE_METHODS
            if method != LOCAL
        }
        curves = {method: points for method, points in curves.items() if points}
        told = f"Δm over training alone by training images per client, for {', '.join(curves)}"
        self.figures[CURVE] = gain_curve(curves, "training images per outdoor client (log scale)", told)
        cells = [[f"`{method}`", *(gain_cell(found, method) for found in compared.values())] for method in curves]
        seeds = [str(len({run.seed for run in sized[images]})) for images in compared]
        caption = (
            f"*Mean gain over training alone (%, `local` is the line at 0) by training images per outdoor client of "
            f"`{name}`; bands are one standard deviation over seeds, and a point without a band is one run.*"
        )
        heads = ["Δm % ↑", *(f"{images:,}" for images in compared)]
        return "\n\n".join([f"![{told}](images/{CURVE}.svg)", caption, markdown(heads, [*cells, ["seeds", *seeds]])])

    def ranks(self, name):
        """The critical-difference figure of an experiment."""
        _, runs = self.comparison(name)
        seeds = {run.seed for run in runs}
        full = [run for run in runs if len({r.seed for r in runs if r.method == run.method}) == len(seeds)]
        ranking = ranking_of(gather(full)) if full else None
        if not ranking:
            return f"*`{name}` was not run with three methods or more.*"
        self.figures[f"ranks-{name}"] = draw_ranks(ranking)
        told = ", ".join(f"{method} {place:.1f}" for method, place in ranking.ranks.items())
        return f"![Average ranks in {name}: {told}](images/ranks-{name}.svg)\n\n{ranking_note(ranking)}"


def gain_table(compared, methods):
    """Δm of these methods in every experiment, and in the paper's."""
    papers = list(dict.fromkeys(found for name in compared if (found := scenario_of(name)) in PAPER))
    heads = [
        "method",
        *(f"`{name.replace(',', '`<br>`')}`" for name in compared),
        *(f"paper<br>{scenario.upper()}" for scenario in papers),
    ]
    rows = []
    for method in methods:
        ours = [gain_cell(comparison, method) for comparison in compared.values()]
        theirs = [PAPER[scenario].get(method) for scenario in papers]
        if method != LOCAL and ({*ours, *theirs} - {NOT_RUN, None}):
            rows.append([f"`{method}`", *ours, *(NOT_RUN if gain is None else f"{gain:+.2f}" for gain in theirs)])
    return markdown(heads, rows)


def comparable(runs):
    """The runs with seeds that Local was run with: others wait for it."""
    seeds = {run.seed for run in runs if run.method == LOCAL}
    return [run for run in runs if run.seed in seeds]


def scenario_of(name):
    """The paper's scenario that an experiment is like.

    >>> scenario_of("scenes_2c_small"), scenario_of("real_2,rounds=20")
    ('2c', '2')
    """
    return name.split(",")[0].split("_")[1]


def head(column):
    measured = metric_heading(column.metric, column.higher_is_better)
    return f"{column.group.split(',')[0]}<br>{column.task}<br>{measured}"


def cell(comparison, method, column):
    """A cell with its mark, in bold if it is the best of the methods that were run with all seeds."""
    whole = {name: row for name, row in comparison.entries.items() if not lacking(comparison, name)}
    best = method in whole and replace(comparison, entries=whole).is_best(method, column)
    text = marked_cell(comparison, method, column, mark=r"\*")
    return f"**{text}**" if best else text


def gain_cell(comparison, method):
    """Δm, with the number of seeds if other methods have more."""
    if comparison is None or DELTA_M not in comparison.entries.get(method, ()):
        return NOT_RUN
    seeds = len(comparison.entries[method][DELTA_M].values)
    return cell(comparison, method, DELTA_M) + f" ({seeds})" * lacking(comparison, method)


def lacking(comparison, method):
    """Whether another method has more seeds."""
    column = comparison.columns[0]
    seeds = {name: len(row[column].values) for name, row in comparison.entries.items()}
    return seeds[method] < max(seeds.values())


def about(runs):
    """What was run, on what."""
    clients, seeds = len(runs[0].tasks), len({run.seed for run in runs})
    devices = " and ".join(sorted({run.line["device"] for run in runs}))
    versions = " and ".join(sorted({run.line["fedhca2"] for run in runs}))
    what = f"{clients} clients, {runs[0].rounds} rounds, {seeds} seed{'s' * (seeds > 1)}, mean ± standard deviation"
    return f"{what}; {len(runs)} run{'s' * (len(runs) > 1)} on {devices}, fedhca2 {versions}."


def markdown(heads, rows):
    """A table whose cells break before ± where the page is narrow."""
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("± ", "±\N{NO-BREAK SPACE}")


def add(runs, records):
    """Record runs; a run that is refused gets a line, and keeps no other from being recorded."""
    new, replaced, refusals = add_runs(runs, records)
    print(f"{new} recorded, {replaced} replaced in {records}")
    print("".join(f"refused: {line}\n" for line in refusals), end="", file=sys.stderr)
    return 1 if refusals else 0


def run(asked):
    """Make and record the runs that are missing; those that fail get a line."""
    faults = run_missing(asked.parts, asked.settings, asked.jobs, asked.out, asked.records)
    print("".join(f"failed: {folder}: {fault}\n" for folder, fault in faults.items()), end="", file=sys.stderr)
    return 1 if faults else 0


def write_page(file, records):
    """Fill the blocks of a page, write its figures, and name the records that are in none of them."""
    page = Page(Runs(read_records(records)))
    file.write_text(page.filled(file.read_text("utf-8")), "utf-8")
    for name, svg in page.figures.items():
        (file.parent / "images").mkdir(exist_ok=True)
        (file.parent / "images" / f"{name}.svg").write_text(svg, "utf-8")
    for what, count in page.runs.unused().items():
        print(f"in no block: {what}{f' ({count} runs)' * (count > 1)}", file=sys.stderr)
    return 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="make and record the runs that are missing, beside each other")
    runs.add_argument("parts", nargs="*", type=part, metavar="PART", help=f"by default all: {', '.join(PARTS)}")
    runs.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    runs.add_argument("--jobs", type=int, help="runs at a time; by default one per GPU, or per core")
    runs.add_argument("--out", type=Path, default=Path("runs/results"), metavar="FOLDER")
    commands.add_parser("add", help="record runs").add_argument("runs", nargs="+", type=Path, metavar="RUNS")
    page = commands.add_parser("page", help="make the page from the records")
    page.add_argument("page", nargs="?", type=Path, default=PAGE, metavar="PAGE.md")
    asked = parser.parse_args(argv)
    try:
        if asked.command == "run":
            return run(asked)
        return add(asked.runs, asked.records) if asked.command == "add" else write_page(asked.page, asked.records)
    except UserError as error:
        print("\n".join(error.lines), file=sys.stderr)
        return 1
    except Interrupted as stopped:
        print(f"{stopped}; unfinished runs are in {asked.out}/", file=sys.stderr)
        return 128 + stopped.signal


if __name__ == "__main__":
    sys.exit(main())
