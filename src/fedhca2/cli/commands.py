"""The options of the commands that work on experiments and runs; `fedhca2 --help` reads no other code."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from fedhca2.cli.app import (
    AllowCode,
    ExperimentName,
    Json,
    Overrides,
    app,
    command,
    complete_methods,
    complete_runs,
    complete_trackers,
)

FinishedRun = Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=complete_runs)]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TARGET",
        help="Also send the numbers: tensorboard=DIR, mlflow=DIR-or-URL, wandb=PROJECT, or my.py:CLASS=TARGET.",
        autocompletion=complete_trackers,
    ),
]
Jobs = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="Number of parallel runs, each in its own process with its share of the cores; "
        "auto: one per GPU, or per core without one.",
    ),
]
Mps = Annotated[bool, typer.Option("--mps", help="Let parallel runs share a GPU with NVIDIA's MPS, if it is there.")]


@command(app, "run")
def run(
    config: ExperimentName = "demo",
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; a new one under runs/ by default.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="A finished run of 'local' to compare with.", autocompletion=complete_runs)
    ] = None,
    engine: Annotated[
        Literal["in-process", "flower-local", "flower-ray"],
        typer.Option(
            help="Where clients run: in this process, in one process each over Flower, or in Flower's Ray simulation."
        ),
    ] = "in-process",
    track: Track = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train and write nothing: print the resolved config, and each client's images, parts and bytes.",
        ),
    ] = False,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Train a federation and print what each client gained."""


@command(app, "run")
def resume(
    run: Annotated[Path, typer.Argument(help="The run's folder.", autocompletion=complete_runs)],
    overrides: Overrides = None,
    track: Track = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Continue an interrupted run from its last checkpoint."""


@command(app, "run")
def watch(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a run or of a comparison, finished or not.", autocompletion=complete_runs),
    ],
    once: Annotated[bool, typer.Option("--once", help="Show the current state and exit.")] = False,
    track: Track = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Follow a run or a comparison in the terminal until it is finished or no process works on it."""


@command(app, "run")
def runs(
    folder: Annotated[Path, typer.Argument(help="The folder with the runs, at any depth.")] = Path("runs"),
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """List the runs in a folder: method, rounds, Δm, start, and whether each is running, finished or interrupted."""


@command(app, "compare")
def compare(
    config: ExperimentName = "demo",
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Names separated by commas, or 'all'; by default fedavg,fedhca2. "
            "Settings of each are in the experiment's `methods`.",
            autocompletion=complete_methods,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per method.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The folder for all runs; by default runs/compare-NAME.")] = None,
    jobs: Jobs = "1",
    mps: Mps = False,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Compare methods on the same data, shards and initial values. Finished runs are not repeated."""


@command(app, "compare")
def sweep(
    config: ExperimentName,
    over: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=V1,V2,…",
            help="A setting to vary, and its values: method.c=0.2,0.4,0.6; copies=1,2,4 varies the number of clients "
            "of each kind. With several, all combinations are run.",
        ),
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Further methods, separated by commas, each a curve of its own; one that does not have the setting "
            "is a horizontal line.",
            autocompletion=complete_methods,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="TASK", help="Draw a task's score instead of Δm: semseg, or with its data, pascal:semseg."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per value.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The folder for all runs; by default runs/sweep-NAME-KEY.")] = None,
    jobs: Jobs = "1",
    mps: Mps = False,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Run an experiment with several values of settings, and draw Δm over them. Finished runs are not repeated."""


@command(app, "compare")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="The folder of a run, of several runs to compare, or of a comparison.", autocompletion=complete_runs
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "--output", "-o", help="The page to write; by default report.html in the first run's folder."
        ),
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Write a report page: one HTML file that needs no network."""


@command(app, "run")
def evaluate(
    run: FinishedRun,
    split: Annotated[Literal["val", "train"], typer.Option(help="train: each client's training images.")] = "val",
    thresholds: Annotated[
        int, typer.Option(min=1, max=254, help="Number of thresholds for edges; the papers use 99.")
    ] = 99,
    client: Annotated[str | None, typer.Option(help="Only this client.")] = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Re-evaluate the models that a run saved, and write RUN/evaluation-SPLIT[-CLIENT].json.

    If the run trained its Local baseline, that is evaluated too, and the two are compared.
    """


@command(app, "run")
def predict(
    run: FinishedRun,
    images: Annotated[list[Path], typer.Argument(help="Image files of any size, and folders of them.")],
    client: Annotated[str, typer.Option(help="The client whose model to use.")],
    out: Annotated[Path, typer.Option("--out", "--output", "-o", help="The folder to write to.")] = Path("predictions"),
    raw: Annotated[bool, typer.Option("--raw", help="Also write the predictions as .npy arrays.")] = False,
    allow_code: AllowCode = None,
) -> None:
    """Predict all tasks of a client; write a coloured map and an overlay, or a picture of a vector, for each."""


@command(app, "run")
def picture(
    run: FinishedRun,
    client: Annotated[str, typer.Option(help="The client whose samples to paint.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "--output", "-o", help="The PNG file to write; by default CLIENT-SAMPLE.png."),
    ] = None,
    sample: Annotated[int, typer.Option(help="Number of the sample, from 0.")] = 0,
    tile: Annotated[int, typer.Option(help="Width of each tile in pixels.", min=16)] = 192,
    allow_code: AllowCode = None,
) -> None:
    """Paint a client's sample: input, label, and the predictions before and after training."""


@command(app, "run")
def export(
    run: FinishedRun,
    client: Annotated[str, typer.Option(help="The client whose model to export.")],
    format: Annotated[Literal["safetensors", "onnx", "torch-export"], typer.Option(help="The file format.")] = "onnx",
    out: Annotated[Path, typer.Option("--out", "--output", "-o", help="The folder to write to.")] = Path("exported"),
    size: Annotated[
        tuple[int, int] | None, typer.Option(help="Height and width of the input; by default those of training.")
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Write a client's model for other programs, with a card that describes inputs and outputs."""


@command(app, "show")
def experiments(
    words: Annotated[
        list[str] | None, typer.Argument(help="List only experiments that mention all of these words.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the experiments that come with the package, and the table or figure each belongs to."""


@command(app, "show")
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="A method's name or location: path/to/file.py:NAME.", autocompletion=complete_methods),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods with the parts they share and their settings, or explain one."""


@app.command()
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")]) -> None:
    """Print a script that makes a shell complete this command with the Tab key."""
    script = get_completion_script(prog_name="fedhca2", complete_var="_FEDHCA2_COMPLETE", shell=shell)
    if shell == "bash":  # lets a value follow a key such as `rounds=` without a space
        script = script.replace("return 0", "[[ $COMPREPLY == *[=/] ]] && compopt -o nospace\n    return 0")
    typer.echo(script)
