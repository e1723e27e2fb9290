"""The command line. `commands` and `groups` have the options of all commands, and import nothing slow."""

from fedhca2.cli import commands, groups
from fedhca2.cli.app import app, print_anywhere

__all__ = ["app", "commands", "groups", "main"]


def main() -> None:
    """Run the command."""
    print_anywhere()
    app()
