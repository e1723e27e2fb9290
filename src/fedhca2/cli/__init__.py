"""The command line. Its modules import nothing slow: see `lazy`."""

from importlib import import_module

from fedhca2.cli.app import app as app
from fedhca2.cli.app import print_anywhere

for _commands in ("run", "compare", "use", "show", "data", "flower"):  # in the order of the documentation
    import_module(f"fedhca2.cli.{_commands}")


def main() -> None:
    """Run the command."""
    print_anywhere()
    app()
