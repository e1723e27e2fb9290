"""The command line. Each command imports the slow modules it needs."""

from fedhca2.cli import catalogue, compare, completion, config, data, flower, models, privacy, run
from fedhca2.cli.app import app, print_anywhere

__all__ = ["app", "catalogue", "compare", "completion", "config", "data", "flower", "main", "models", "privacy", "run"]


def main() -> None:
    """Run the command."""
    print_anywhere()
    app()
