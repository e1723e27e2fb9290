"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

TensorBoardFolder = Annotated[
    Path | None,
    typer.Option("--tensorboard", metavar="DIR", help="Write TensorBoard event files into this folder too."),
]
WandbProject = Annotated[
    str | None, typer.Option("--wandb", metavar="PROJECT", help="Send the numbers to this project of W&B too.")
]
