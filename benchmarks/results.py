"""Everything in README.md and docs/results*.md that is made from runs.

    python benchmarks/results.py run [PART …]    makes the runs that are missing, and records them
    python benchmarks/results.py add RUNS…       records the finished runs below these folders in benchmarks/results/
    python benchmarks/results.py page            makes the tables and figures of these pages from the records

A run belongs to the built-in experiment that its config names, and replaces the record of an earlier run with its
experiment, settings and seed. A run is compared with the record of Local that has its settings and seed. What stands
between `<!-- results: BLOCK … -->` and `<!-- end -->` is replaced; figures go to the folder images/ of their page.
Blocks name experiments as NAME or, with other settings, as NAME,KEY=VALUE.
"""

import argparse
import re
import sys
from pathlib import Path
from statistics import mean

from gain_bars import gain_bars
from gain_curve import gain_curve
from results_adding import add_runs
from results_claims import alpha_table, beta_table, federations_table, pace_table
from results_jobs import CURVE_METHODS, PARTS, part
from results_of_papers import SENSITIVITY
from results_records import RECORDS, read_records
from results_running import run_missing
from results_runs import (
    ENCODER,
    FAMILIES,
    LENGTHS,
    METHOD,
    RECIPE,
    SIZES,
    Runs,
    encoder_of,
    exchanges_per_epoch,
    images_per_client,
)
from results_tables import (
    CHOICES,
    NOT_RUN,
    about,
    board_table,
    cell,
    comparable,
    describe_gain,
    gain_cell,
    gain_of,
    gain_table,
    gains_in_families,
    gains_of_tasks,
    gains_over_targets,
    head,
    label_of,
    lead,
    markdown,
    mean_cell,
    over_local,
    rank_runs,
    scenario_of,
    seed_gains,
)

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.stopping import Interrupted
from fedhca2.methods import METHODS
from fedhca2.reports.comparison import BY_CLIENT, DELTA_M, LOCAL, RECOVERED, gather, rank_methods
from fedhca2.reports.drawings import draw_ranks, ranking_note, ranking_of
from fedhca2.reports.layouts import marks_note
from fedhca2.tasks import TASKS
from fedhca2.words import metric_heading

BLOCK = re.compile(r"(<!-- results: ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)
ROOT = Path(__file__).parents[1]
OTHERS = ("README.md", "docs/beyond-images.md", "docs/choose-a-method.md")
PAGES = [*(ROOT / page for page in OTHERS), *sorted((ROOT / "docs").glob("results*.md"))]
CURVE, EXCHANGES = "when-federation-helps", "exchanges-per-epoch"


class Page:
    """The blocks of pages. Each takes the words after its name and returns Markdown."""

    def __init__(self, runs):
        self.runs = runs
        self.comparisons = {}  # comparisons by experiment: several blocks show the same
        self.figures = {}  # SVG by name

    def fill(self, text):
        """The text of a page with its blocks made again."""

        def made(block):
            what, *words = block[2].split()
            return f"{block[1]}{getattr(self, what)(*words)}\n{block[3]}"

        return BLOCK.sub(made, text)

    def comparison(self, name):
        """The methods of the catalogue with their defaults."""
        if name not in self.comparisons:
            runs = comparable(self.runs.plain(name))
            self.comparisons[name] = (gather(runs), runs) if runs else (None, [])
        return self.comparisons[name]

    def rank_runs(self, name):
        """What the leaderboard has of the methods of the catalogue with their defaults, by method."""
        return rank_runs(self.runs.plain(name))

    def table(self, name):
        """One experiment: every method, kind of client and task."""
        comparison, runs = self.comparison(name)
        if not comparison:
            return f"*`{name}` was not run.*"
        scores = [column for column in comparison.columns if not column.is_gain]
        gains = [column for column in (DELTA_M, RECOVERED, BY_CLIENT) if column in comparison.columns]
        heads = ["method", *map(head, scores), *(f"{gain.metric}<br>% ↑" for gain in gains), "seeds", "s"]
        rows, costs = [], self.rank_runs(name)
        for method in comparison.entries:
            cells = [cell(comparison, method, column) for column in (*scores, *gains)]
            rows.append([f"`{method}`", *cells, str(costs[method]["seeds"]), f"{costs[method]['seconds']:.0f}"])
        note = marks_note(comparison).replace("*", r"\*")
        return "\n\n".join(filter(None, [about(runs), markdown(heads, rows), note]))

    def gains(self, name, method):
        """One method over training alone: a row for every kind of client and task."""
        comparison, runs = self.comparison(name)
        if not comparison or method not in comparison.entries:
            return f"*`{method}` was not run in `{name}`.*"
        heads = ["clients", "task", "score", "alone", f"`{method}`", "gain"]
        rows = []
        for column in (column for column in comparison.columns if not column.is_gain):
            task = TASKS[column.task]
            score = f"{metric_heading(column.metric, column.higher_is_better)} in {task.unit}"
            cells = [mean_cell(comparison, row, column) for row in (LOCAL, method)]
            gain = f"{mean(seed_gains(comparison, column, method)):+.1f}%"
            rows.append([column.group.split(",")[0], task.title.lower(), score, *cells, gain])
        seeds, gain = len({run.seed for run in runs}), mean_cell(comparison, method, DELTA_M)
        summary = f"Δm, the mean relative gain, is {gain}% (mean ± standard deviation, {seeds} seeds)."
        return f"{markdown(heads, rows).replace('---: | ---: |', '--- | --- |', 1)}\n\n{summary}"

    def bars(self, name, method):
        """The gains of one method over training alone as a figure."""
        comparison, _ = self.comparison(name)
        if not comparison or method not in comparison.entries:
            return f"*`{method}` was not run in `{name}`.*"
        gains = {}
        for column in (column for column in comparison.columns if not column.is_gain):
            label = f"{column.group.split(',')[0]}: {TASKS[column.task].title.lower()}"
            gains[label] = seed_gains(comparison, column, method)
        summary = ", ".join(f"{label} {mean(own):+.1f}%" for label, own in gains.items())
        summary = f"Gains of {method} over training alone in {name}: {summary}"
        self.figures[f"gains-{name}"] = gain_bars(gains, summary)
        return f"![{summary}](images/gains-{name}.svg)"

    def summary(self, *names):
        """Δm of every method in every experiment, and in the paper's."""
        return gain_table({name: self.rank_runs(name) for name in names}, METHODS)

    def leaderboard(self, *names):
        """What `fedhca2 leaderboard` says of these experiments."""
        rows = [row for name in names for row in self.rank_runs(name).values() if row["method"] != LOCAL]
        return board_table(rows) if rows else f"*{', '.join(f'`{name}`' for name in names)} were not run.*"

    def ahead(self, method, *names):
        """By how much Δm of one method is ahead of every other's, and with how many of the seeds that both have."""
        comparisons = {name: comparison for name in names if (comparison := self.comparison(name)[0])}
        rows = []
        for other in METHODS:
            if other != method and any(other in each.entries for each in comparisons.values()):
                rows.append([f"`{other}`", *(lead(comparison, method, other) for comparison in comparisons.values())])
        return markdown(["ahead of", *(f"`{name.split(',')[0]}`" for name in comparisons)], rows)

    def shared(self, *names):
        """Δm of the methods that were run in all of these experiments; marks are corrected for their number."""
        runs = {name: comparable(self.runs.plain(name)) for name in names}
        methods = set.intersection(*({run.method for run in own} for own in runs.values()))
        if LOCAL not in methods or len(methods) == 1:
            return f"*{', '.join(f'`{name}`' for name in names)} were not run with the same methods.*"
        boards = {name: rank_runs([run for run in own if run.method in methods]) for name, own in runs.items()}
        return gain_table(boards, [method for method in METHODS if method in methods])

    def encoders(self, name):
        """FedHCA² with adapters or a frozen backbone: what crosses, and Δm over Local's whole encoder."""
        rows = {}
        for run in over_local(self.runs.that_change(name, ENCODER)):
            if run.method == "fedhca2":
                rows.setdefault(encoder_of(run.settings), []).append(run)
        if len(rows) < 2:
            return f"*`{name}` was not run with other encoders.*"
        heads = ["encoder", "MB up per client and round", "Δm over Local's whole encoder<br>% ↑", "seeds"]
        cells = []
        for label, own in rows.items():
            [row] = rank_methods(own)
            up = mean(run.line["megabytes_up"] for run in own)
            cells.append([label, f"{up:.2f}", gain_of(row), str(row["seeds"])])
        return markdown(heads, sorted(cells, key=lambda row: float(row[1]), reverse=True))

    def sensitivity(self, name):
        """FedHCA² with other settings."""
        runs = self.runs.that_change(name, METHOD)
        alone, ours = ([run for run in runs if run.method == method] for method in (LOCAL, "fedhca2"))
        if not alone or not ours:
            return f"*`{name}` was not run with other settings.*"
        rows = []
        for label, changes, papers in SENSITIVITY:
            own = rank_runs([*alone, *(run for run in ours if run.changes == changes)]).get("fedhca2")
            gain_cells = [gain_of(own), str(own["seeds"])] if own else [NOT_RUN] * 2
            paper = papers.get(scenario_of(name))
            if own or paper is not None:
                rows.append([label, *gain_cells, NOT_RUN if paper is None else f"{paper:+.2f}"])
        return markdown(["`fedhca2`", "Δm<br>% ↑", "seeds", "paper"], rows)

    def federations(self):
        """Gains by who takes part."""
        return federations_table(self.runs)

    def pace(self, name):
        """How many rounds methods need to come near Local's final score."""
        return pace_table(self.runs, name)

    def alpha(self, name):
        """α of each client over rounds."""
        return alpha_table(self.runs, name)

    def beta(self, name):
        """The last β of each decoder by layer."""
        return beta_table(self.runs, name)

    def recipe(self, name):
        """Training alone, and with one setting of the experiment changed at a time."""
        runs = [run for run in self.runs.that_change(name, RECIPE) if run.method == LOCAL]
        runs = [run for run in runs if run.seed == 0 and len(run.changes) <= 1]
        if len(runs) < 2:
            return f"*`{name}` was not run with other settings of training.*"
        columns = [(client, task) for client, tasks in runs[0].scores.items() for task in tasks]
        rows = [
            [
                label_of(run.changes),
                *(f"{next(iter(run.scores[client][task].values())):.4g}" for client, task in columns),
            ]
            for run in sorted(runs, key=lambda run: len(run.changes))
        ]
        return markdown(["`local`, seed 0", *(f"{client}<br>{task}" for client, task in columns)], rows)

    def variants(self, name):
        """Methods with any settings, over all targets."""
        return gains_over_targets(self.runs.that_change(name, METHOD))

    def targets(self, name, *methods):
        """The gain of each client's task with these methods, if they were run with all seeds."""
        runs = self.runs.that_change(name, METHOD)
        return gains_of_tasks([run for run in runs if run.method in (LOCAL, *methods)])

    def families(self, name):
        """The gain of families of targets among all companies, and among their family alone."""
        return gains_in_families(self.runs.that_change(name, FAMILIES))

    def chooser(self):
        """A method to start with for some federations, and what it gained there."""
        rows = []
        for federation, method, settings, name, images in CHOICES:
            board = self.by_size(name).get(images, {}) if images else self.rank_runs(name)
            if gain := describe_gain(board.get(method)):
                rows.append([federation, f"`{method}`{settings}", gain])
        return markdown(["your federation", "start with", "gain over training alone"], rows).replace("---:", "---")

    def by_size(self, name):
        """The leaderboards of an experiment by training images per client."""
        sized, tasks = {}, {spec.name: spec.tasks for spec in Experiment.load(name).specs}
        for run in self.runs.that_change(name, SIZES):
            same_clients = {client: tuple(scores) for client, scores in run.scores.items()} == tasks
            if same_clients and run.method in CURVE_METHODS and exchanges_per_epoch(run.settings) is None:
                sized.setdefault(images_per_client(run.settings), []).append(run)
        boards = {images: rank_runs(runs) for images, runs in sorted(sized.items())}
        return {images: board for images, board in boards.items() if board}

    def curve(self, name):
        """Δm over images per client, as a figure and as a table."""
        boards = self.by_size(name)
        if len(boards) < 2:
            return f"*`{name}` was not run with other numbers of images.*"
        seeds = ["seeds", *(str(board[LOCAL]["seeds"]) for board in boards.values())]
        what = f"training images per outdoor client of `{name}`"
        note = "bands are one standard deviation over seeds, and a point without a band is one run"
        return self.draw_curve(CURVE, boards, "training images per outdoor client", what, note, [seeds])

    def exchanges(self, name):
        """Δm over exchanges per epoch with equal total steps, as a figure and as a table."""
        runs = [run for run in self.runs.that_change(name, LENGTHS) if exchanges_per_epoch(run.settings)]
        often = {}
        for run in (run for run in over_local(runs) if run.method != LOCAL):
            often.setdefault(exchanges_per_epoch(run.settings), []).append(run)
        if len(often) < 2:
            return f"*`{name}` was not run with other numbers of exchanges.*"
        boards = {x: rank_runs(own) for x, own in sorted(often.items())}
        what = f"exchanges per epoch in `{name}`, with equal numbers of steps"
        return self.draw_curve(
            EXCHANGES, boards, "exchanges per epoch", what, "bands are one standard deviation over seeds"
        )

    def draw_curve(self, figure, boards, x_title, what, note, more=()):
        """Δm over the numbers that leaderboards belong to, as a figure and as a table with `more` rows."""
        points_by_method = {
            method: {x: board[method] for x, board in boards.items() if method in board} for method in CURVE_METHODS
        }
        curves = {method: points for method, points in points_by_method.items() if points and method != LOCAL}
        summary = f"Δm over training alone by {x_title}, for {', '.join(curves)}".replace(" outdoor", "")
        self.figures[figure] = gain_curve(curves, f"{x_title} (log scale)", summary)
        caption = f"*Mean gain over training alone (%, `local` is the line at 0) by {what}; {note}.*"
        cells = [[f"`{method}`", *(gain_cell(board, method) for board in boards.values())] for method in curves]
        table = markdown(["Δm % ↑", *(f"{x:,g}" for x in boards)], [*cells, *more])
        return "\n\n".join([f"![{summary}](images/{figure}.svg)", caption, table])

    def ranks(self, name):
        """The critical-difference figure of an experiment."""
        _, runs = self.comparison(name)
        seeds = {run.seed for run in runs}
        full = [run for run in runs if len({r.seed for r in runs if r.method == run.method}) == len(seeds)]
        ranking = ranking_of(gather(full)) if full else None
        if not ranking:
            return f"*`{name}` was not run with three methods or more.*"
        self.figures[f"ranks-{name}"] = draw_ranks(ranking)
        ranks = ", ".join(f"{method} {rank:.1f}" for method, rank in ranking.ranks.items())
        return f"![Average ranks in {name}: {ranks}](images/ranks-{name}.svg)\n\n{ranking_note(ranking)}"


def add(runs, records):
    """Record runs; a run that is refused gets a line, and keeps no other from being recorded."""
    new, replaced, refusals = add_runs(runs, records)
    print(f"{new} recorded, {replaced} replaced in {records}")
    print("".join(f"refused: {line}\n" for line in refusals), end="", file=sys.stderr)
    return 1 if refusals else 0


def run(options):
    """Make and record the runs that are missing; those that fail get a line."""
    faults = run_missing(options.parts, options.only, options.settings, options.jobs, options.out, options.records)
    print("".join(f"failed: {folder}: {fault}\n" for folder, fault in faults.items()), end="", file=sys.stderr)
    return 1 if faults else 0


def write_pages(files, records):
    """Fill the blocks of pages, write their figures, and name the records that are in none of them."""
    page = Page(Runs(read_records(records)))
    for file in files:
        page.figures.clear()
        file.write_text(page.fill(file.read_text("utf-8")), "utf-8")
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
    runs = commands.add_parser("run", help="make and record the runs that are missing")
    runs.add_argument("parts", nargs="*", type=part, metavar="PART", help=f"by default all: {', '.join(PARTS)}")
    runs.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    runs.add_argument("--jobs", type=int, help="runs at a time; by default one per GPU, or per core")
    runs.add_argument(
        "--only", default="", metavar="REGEX", help="those of them with such names, as results_jobs.py has"
    )
    runs.add_argument("--out", type=Path, default=Path("runs/results"), metavar="FOLDER")
    commands.add_parser("add", help="record runs").add_argument("runs", nargs="+", type=Path, metavar="RUNS")
    page = commands.add_parser("page", help="make the tables and figures of pages from the records")
    page.add_argument("pages", nargs="*", type=Path, default=PAGES, metavar="PAGE.md")
    options = parser.parse_args(argv)
    try:
        if options.command == "run":
            return run(options)
        return (
            add(options.runs, options.records)
            if options.command == "add"
            else write_pages(options.pages, options.records)
        )
    except UserError as error:
        print("\n".join(error.lines), file=sys.stderr)
        return 1
    except Interrupted as stopped:
        print(f"{stopped}; unfinished runs are in {options.out}/", file=sys.stderr)
        return 128 + stopped.signal


if __name__ == "__main__":
    sys.exit(main())
