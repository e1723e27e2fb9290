"""The command line. `commands` and `groups` have the options of all commands, and import nothing slow."""

from fedhca2.cli import commands as commands
from fedhca2.cli import groups as groups
from fedhca2.cli.app import app as app
from fedhca2.cli.app import print_anywhere


def main() -> None:
    """Run the command."""
    print_anywhere()
    app()
