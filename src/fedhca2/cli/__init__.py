"""The command line. What is slow to import is imported by the command that needs it."""

from fedhca2.cli import (
    compare,
    data,
    evaluate,
    experiments,
    export,
    flower,
    methods,
    picture,
    predict,
    privacy,
    report,
    resume,
    run,
    watch,
)
from fedhca2.cli.app import app

__all__ = [
    "app",
    "compare",
    "data",
    "evaluate",
    "experiments",
    "export",
    "flower",
    "main",
    "methods",
    "picture",
    "predict",
    "privacy",
    "report",
    "resume",
    "run",
    "watch",
]


def main() -> None:
    """Run the command."""
    app()
