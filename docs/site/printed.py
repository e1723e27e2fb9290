"""What the command prints, on the pages that show it: outputs between marks, commands, methods, and all settings.

python docs/site/printed.py     runs the commands and writes the pages again

Between `<!-- prints: COMMAND -->` and `<!-- end -->` is what the command prints, in a folder with the files of its
page: fenced blocks whose first line names a file, such as `# my.yaml`. `python FILE && …` runs one of them first.
`<!-- commands -->`, `<!-- methods -->` and `<!-- settings -->` begin blocks that describe all of these.
"""

import inspect
import re
import runpy
import shlex
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_type_hints

import typer
from click import Group
from method_facts import table as methods_table
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.configs import list_settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PRINTS = re.compile(r"(<!-- prints: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
METHODS = re.compile(r"(<!-- methods -->\n).*?(<!-- end -->)", re.DOTALL)
COMMANDS = re.compile(r"(<!-- commands -->\n).*?(<!-- end -->)", re.DOTALL)
SETTINGS = re.compile(r"(<!-- settings -->\n).*?(<!-- end -->)", re.DOTALL)
FILE = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def filled(text):
    """A page with what its commands print."""
    if not any(block.search(text) for block in (PRINTS, COMMANDS, METHODS, SETTINGS)):
        return text
    with TemporaryDirectory() as folder, chdir(folder):
        for name, content in FILE.findall(text):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content, "utf-8")
        text = PRINTS.sub(lambda block: f"{block[1]}```\n{output(block[2])}\n```\n{block[3]}", text)
    text = METHODS.sub(lambda block: f"{block[1]}{methods_table()}\n{block[2]}", text)
    text = SETTINGS.sub(lambda block: f"{block[1]}{settings_tables()}\n{block[2]}", text)
    return COMMANDS.sub(lambda block: f"{block[1]}{''.join(described(typer.main.get_command(app)))}{block[2]}", text)


def output(line):
    """What the last of several commands prints on both streams, with paths in this folder."""
    *before, last = (shlex.split(command) for command in line.split(" && "))
    for _, file in before:
        runpy.run_path(file, run_name="__main__")
    printed = CliRunner().invoke(app, last[1:], env={"COLUMNS": "100"}).output.replace(f"{Path.cwd()}/", "")
    return "\n".join(each.rstrip() for each in printed.strip().splitlines())


def described(group, above=""):
    """Every command of a group, with its arguments and options; groups follow their commands."""
    for name, command in group.commands.items():
        path = f"{above} {name}".strip()
        if isinstance(command, Group):
            yield f"## `fedhca2 {path}`\n\n{plain(command.help)}\n\n"
            yield from described(command, path)
        elif not command.hidden:
            yield f"{'###' if above else '##'} `fedhca2 {path}`\n\n{plain(command.help)}\n\n"
            declared = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
            shown = [
                each for each in command.params if not (each.name == "traceback" or getattr(each, "hidden", False))
            ]
            rows = [row(each, declared) for each in shown]
            yield "| | meaning | default |\n| --- | --- | --- |\n" + "".join(rows) + "\n" if rows else ""


def row(parameter, declared):
    """One argument or option; `declared` are the type hints of its command, which Typer's help is made from."""
    option = parameter.param_type_name == "option"
    flag = getattr(parameter, "is_flag", False)
    with typer.Context(typer.main.get_command(app)) as context:
        values = parameter.make_metavar(context) if option else parameter.human_readable_name
        default = parameter.get_default(context)
    hints = getattr(declared.get(parameter.name), "__metadata__", (parameter,))
    name = ", ".join([*parameter.opts, *parameter.secondary_opts]) if option else values
    if option and not flag:
        name += f" {values}"
    if isinstance(hints[0].show_default, str):
        default = hints[0].show_default
    elif parameter.required:
        default = "required"
    else:
        default = "" if flag or default in (None, (), "", []) else f"`{default}`"
    meaning = plain(hints[0].help or "").replace("|", r"\|")
    return f"| `{name.replace('|', ' or ')}` | {meaning} | {default} |\n"


def plain(help):
    """A help text in one paragraph."""
    return " ".join((help or "").replace("\b", "").split())


def settings_tables():
    """A table for each group of settings."""
    lines, group, settings = [], None, list_settings()
    for each in settings:
        if each.group != group:
            group = each.group
            lines += [f"## {heading(group)}", "", *([each.about, ""] if each.about else [])]
            lines += ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
        values = f"[below](#{place_of(each, settings)})" if each.values == "nested settings" else each.values
        cells = [f"`{each.name}`", values, each.default, each.meaning]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return re.sub(r"\|\n##", "|\n\n##", "\n".join(lines))


def heading(group):
    """The title of a group of settings."""
    return group.replace("clients.0", "clients.N") or "The experiment"


def place_of(setting, settings):
    """The anchor of the group within a setting: the first, or for a group that occurs again, where it occurs first."""
    keys = (re.escape(re.sub(r"\(\w+\)", "(scenes)", key)) for key in (setting.key, setting.name))
    found = (each.group for key in keys for each in settings if re.match(rf"{key}(?: |\.NAME|\.0|$)", each.group))
    return re.sub("[^a-z0-9_ -]", "", heading(next(found)).lower()).replace(" ", "-")


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text("utf-8")
        if filled(text) != text:
            page.write_text(filled(text), "utf-8")
            print(page.relative_to(ROOT))
