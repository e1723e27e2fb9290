"""The options of the commands that work on experiments and runs; `fedhca2 --help` reads no other code."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from fedhca2.cli.app import (
    AllowCode,
    Described,
    ExperimentName,
    Json,
    OutOption,
    Overrides,
    RunOut,
    UnsetOption,
    app,
    command,
    complete_clients,
    complete_methods,
    complete_runs,
    complete_trackers,
)

RunsFolder = Annotated[Path, Argument(help="Folder that contains the runs, at any depth.")]
FinishedRun = Annotated[Path, Argument(help="Folder of a finished run.", autocompletion=complete_runs)]
Track = Annotated[
    list[str] | None,
    UnsetOption(
        metavar="NAME=TARGET",
        help="Log metrics to a tracker; repeatable: tensorboard=DIR, mlflow=DIR or URL, wandb=PROJECT, "
        "FILE.py:CLASS=TARGET.",
        autocompletion=complete_trackers,
    ),
]
Jobs = Annotated[
    str,
    Option(
        metavar="N|auto",
        help="Parallel runs, each with its share of the cores; auto: one per GPU, or per core without a GPU.",
    ),
]
Mps = Annotated[bool, Option("--mps", help="Let parallel runs share a GPU with NVIDIA's MPS, if installed.")]
Trivial = Annotated[
    bool, Option("--trivial", help="Also list the score of a constant answer: the largest class, or the mean.")
]


@command(app, "run", panel="Run")
def run(
    config: ExperimentName = "demo",
    overrides: Overrides = None,
    out: RunOut = None,
    baseline: Annotated[
        Path | None,
        UnsetOption(help="Folder of a finished run of `local` to compare with.", autocompletion=complete_runs),
    ] = None,
    engine: Annotated[
        Literal["in-process", "flower-local", "flower-ray"],
        Option(help="How to run the clients: in this process, one Flower process each, or Flower's Ray simulation."),
    ] = "in-process",
    track: Track = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Validate only: print the resolved settings, clients, traffic and memory.")
    ] = False,
    allow_code: AllowCode = None,
    trivial: Trivial = False,
    as_json: Json = False,
) -> None:
    """Train a federation and print what each client gained.

    Example: `fedhca2 run demo --set rounds=5 --out runs/first`
    """


@command(app, "run", panel="Run")
def resume(
    run: Annotated[Path, Argument(help="Folder of the run.", autocompletion=complete_runs)],
    overrides: Overrides = None,
    track: Track = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Continue an interrupted run from its last checkpoint."""


@command(app, "run", panel="Run")
def watch(
    run: Annotated[
        Path, Argument(help="Folder of a run or comparison, finished or not.", autocompletion=complete_runs)
    ],
    once: Annotated[bool, Option("--once", help="Show the current state and exit.")] = False,
    track: Track = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Follow a run or comparison until it ends."""


@command(app, "run", panel="Run")
def runs(folder: RunsFolder = Path("runs"), allow_code: AllowCode = None, as_json: Json = False) -> None:
    """List runs with their method, progress, Δm and state."""


@command(app, "data", panel="Run")
def new(
    folder: Annotated[Path, Argument(help="New folder to write to.")],
    table: Annotated[bool, Option("--table", help="Use rows of measurements instead of images.")] = False,
) -> None:
    """Create a small project to start from: data, experiment and README."""


@command(app, "compare", panel="Compare")
def compare(
    config: ExperimentName = "demo",
    methods: Annotated[
        list[str] | None,
        Option(
            help="Comma-separated methods, or `all`. Each runs with its default settings, or with those under "
            "`methods` in the experiment.",
            show_default="fedavg,fedhca2",
            autocompletion=complete_methods,
        ),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Seeds per method, counted up from the experiment's seed.")] = 1,
    out: Annotated[Path | None, OutOption(help="Folder for all runs.", show_default="runs/compare-NAME")] = None,
    jobs: Jobs = "1",
    mps: Mps = False,
    overrides: Overrides = None,
    trivial: Trivial = False,
    as_json: Json = False,
) -> None:
    """Compare methods with the same data, splits and initial weights. Repeat the command to continue.

    Example: `fedhca2 compare demo --methods fedper,fedhca2 --seeds 3`
    """


@command(app, "compare", panel="Compare")
def sweep(
    config: ExperimentName,
    over: Annotated[
        list[str],
        Option(
            metavar="KEY=V1,V2,…",
            help="Setting to vary, and its values: method.c=0.2,0.4,0.6. copies=1,2,4 varies the clients per group. "
            "Repeatable: all combinations are run.",
        ),
    ],
    methods: Annotated[
        list[str] | None,
        UnsetOption(
            help="Comma-separated further methods, each a curve; a method without the setting is a horizontal line.",
            autocompletion=complete_methods,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        Option(
            metavar="TASK",
            help="Task whose score to plot, such as semseg, or with its data set pascal:semseg.",
            show_default="Δm",
        ),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Seeds per value.")] = 1,
    out: Annotated[Path | None, OutOption(help="Folder for all runs.", show_default="runs/sweep-NAME-KEY")] = None,
    jobs: Jobs = "1",
    mps: Mps = False,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Run an experiment for several values of a setting and plot Δm. Repeat the command to continue.

    Example: `fedhca2 sweep demo --over method.c=0.2,0.4 --seeds 3`
    """


@command(app, "compare", panel="Compare")
def report(
    runs: Annotated[
        list[Path],
        Argument(help="Folder of a run or of a comparison; several to compare runs.", autocompletion=complete_runs),
    ],
    out: Annotated[
        Path | None, OutOption(help="HTML file to write.", show_default="report.html in the first folder")
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Write a self-contained HTML report."""


@command(app, "compare", panel="Compare")
def leaderboard(
    folder: RunsFolder = Path("runs"),
    allow_code: AllowCode = None,
    as_json: Json = False,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV, a row for each experiment and method.")] = False,
) -> None:
    """Rank the methods of every experiment by Δm over seeds, with the worst client, time and bytes."""


@command(app, "run", panel="Use")
def evaluate(
    run: FinishedRun,
    split: Annotated[
        Literal["train", "val", "test"] | None,
        Option(help="Images to score: validation, test or training images.", show_default="those of the run's result"),
    ] = None,
    thresholds: Annotated[
        int, Option(min=1, max=254, help="Number of thresholds for edge scores; the papers use 99.")
    ] = 99,
    client: Annotated[
        str | None, Option(help="Client to evaluate.", show_default="all", autocompletion=complete_clients)
    ] = None,
    allow_code: AllowCode = None,
    trivial: Trivial = False,
    as_json: Json = False,
) -> None:
    """Evaluate a run's saved models again.

    Writes RUN/evaluation-SPLIT.json, or RUN/evaluation-SPLIT-CLIENT.json for one client.

    A local baseline that the run trained is evaluated too, for comparison.
    """


@command(app, "run", panel="Use")
def predict(
    run: FinishedRun,
    images: Annotated[list[Path], Argument(help="Image files of any size, or folders of them at any depth.")],
    client: Annotated[str, Option(help="Client whose model to use.", autocompletion=complete_clients)],
    out: Annotated[Path, OutOption(help="Folder to write to.")] = Path("predictions"),
    raw: Annotated[bool, Option("--raw", help="Also write the predictions as .npy arrays.")] = False,
    as_json: Json = False,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV, a row for each image and task.")] = False,
    allow_code: AllowCode = None,
) -> None:
    """Apply a client's model to images: print the answers and save the predictions as pictures.

    Example: `fedhca2 predict runs/first photos/ --client home`
    """


@command(app, "run", panel="Use")
def picture(
    run: FinishedRun,
    client: Annotated[str, Option(help="Client whose sample to draw.", autocompletion=complete_clients)],
    out: Annotated[Path | None, OutOption(help="PNG file to write.", show_default="CLIENT-SAMPLE.png")] = None,
    sample: Annotated[int, Option(help="Number of the sample, from 0.")] = 0,
    tile: Annotated[int, Option(help="Tile width in pixels.", min=16)] = 192,
    allow_code: AllowCode = None,
) -> None:
    """Draw a sample: input, label, and predictions before and after training."""


@command(app, "run", panel="Use")
def export(
    run: FinishedRun,
    client: Annotated[str, Option(help="Client whose model to export.", autocompletion=complete_clients)],
    format: Annotated[Literal["safetensors", "onnx", "torch-export"], Option(help="File format.")] = "onnx",
    out: Annotated[Path, OutOption(help="Folder to write to.")] = Path("exported"),
    size: Annotated[
        tuple[int, int] | None,
        Option(metavar="HEIGHT WIDTH", help="Size of the input in pixels.", show_default="as in training"),
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Export a client's model (ONNX, safetensors or torch.export) with a model card."""


@command(app, "show", panel="Inspect")
def experiments(
    words: Annotated[
        list[str] | None, Argument(help="List only experiments that mention all these words.", show_default="all")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the built-in experiments, and the table or figure that each belongs to."""


@command(app, "show", panel="Inspect")
def methods(
    name: Annotated[
        str | None,
        Argument(
            help="Name of a method, or path/to/file.py:NAME.", show_default="all", autocompletion=complete_methods
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods with what they share and their settings, or explain one."""


@app.command(cls=Described, rich_help_panel="Inspect")
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Argument(help="Shell: bash, zsh or fish.")]) -> None:
    """Print a shell completion script."""
    script = get_completion_script(prog_name="fedhca2", complete_var="_FEDHCA2_COMPLETE", shell=shell)
    if shell == "bash":  # lets a value follow a key such as `rounds=` without a space
        script = script.replace("return 0", "[[ $COMPREPLY == *[=/] ]] && compopt -o nospace\n    return 0")
    typer.echo(script)
