"""Tables for docs/results.md from folders of `fedhca2 compare`: python benchmarks/results.py FOLDER…"""

import sys
from pathlib import Path

from fedhca2.reports.comparison import gather, to_markdown
from fedhca2.run_folder.reader import RunFiles


def section(folder):
    """Format the title, setting and table of one comparison."""
    runs = [RunFiles.open(path.parent) for path in sorted(folder.glob("*/seed-*/result.json"))]
    runs.sort(key=lambda run: run.method != "local")
    config, results = runs[0].config, [run.result for run in runs]
    seeds = len({run.config["seed"] for run in runs})
    minutes = sum(result["seconds"] for result in results) / 60
    about = f"{len(runs[0].tasks)} clients, {config['rounds']} rounds, {seeds} seeds, mean ± standard deviation. "
    version = results[0]["versions"]["fedhca2"]
    about += f"{len(runs)} runs in {minutes:.0f} minutes on {results[0]['device']}, fedhca2 {version}."
    return f"## {folder.name}\n\n{about}\n\n{to_markdown(gather(runs))}"


if __name__ == "__main__":
    print("\n".join(section(Path(folder)) for folder in sys.argv[1:]))
