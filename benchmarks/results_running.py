"""Making the runs behind docs/results.md that are not recorded yet, several at a time as `fedhca2 compare` does."""

import re

from results_adding import add_runs
from results_jobs import lines_of, settings_in
from results_records import find_missing, read_records
from rich.console import Console

from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import ComparisonRun, run_folder_of
from fedhca2.federation.parallel_runs import run_in_parallel
from fedhca2.reports.console import ParallelConsole


def run_missing(parts, only, settings, jobs, folder, records):
    """Make the runs of parts whose names match a pattern, and record each when it ends.

    At most `jobs` run at a time (None: one per GPU, or per core). What an interrupted command has finished is not made
    again. Returns the faults of failed runs, by folder.
    """
    is_missing = find_missing(read_records(records))
    runs = [plan(line, settings, folder) for line in lines_of(parts) if re.search(only, line.split()[0])]
    runs = [run for run in runs if is_missing(run.experiment.to_dict())]
    finished = [run.folder for run in runs if run.finished]
    add_runs(finished, records)
    if len(finished) == len(runs):
        return {}
    with Recording(records, Console(), len(runs), len(finished)) as recording:
        return run_in_parallel(runs, jobs, recording, mps=True)


def plan(line, settings, folder):
    """The run in a line of `results_jobs.py`, with further settings."""
    name, experiment, *options = line.split()
    chosen = Experiment.load(experiment, [*settings_in(options), *settings])
    return ComparisonRun(chosen, run_folder_of(folder, re.sub(r"-s\d+$", "", name), chosen.seed), None)


class Recording(ParallelConsole):
    """Shows the runs, and records those that finish."""

    def __init__(self, records, *shown):
        super().__init__(*shown)
        self.records = records

    def ended(self, run, seconds, fault):
        super().ended(run, seconds, fault)
        if not fault:
            add_runs([run.folder], self.records)
