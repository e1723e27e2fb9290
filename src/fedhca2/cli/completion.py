"""`fedhca2 completion`: what a shell proposes when Tab is pressed. It imports nothing slow.

Settings, their values and the methods come from the schema of experiments that the package contains.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from click.shell_completion import ShellComplete, add_completion_class, split_arg_string

from fedhca2.cli.app import app
from fedhca2.configs import SCHEMA, embedded_file, embedded_names
from fedhca2.run_folder.names import CONFIG
from fedhca2.strict_yaml import YamlError, read_yaml

Proposal = tuple[str, str]  # a word and its meaning
Schema = dict[str, Any]
SUFFIXES = (".yaml", ".yml")
UNFINISHED = "=./:"  # a word that ends so goes on, without a space

# Each script hands over the line up to the cursor, and gets a line "word<Tab>meaning" for each proposal.
SCRIPTS = {
    "bash": r"""
_fedhca2() {
    local IFS=$'\n' word="${COMP_WORDS[COMP_CWORD]}"
    [[ $COMP_WORDBREAKS == *"$word"* ]] && word=""
    local -x _FEDHCA2_COMPLETE=complete_line COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$word"
    COMPREPLY=($("$1" | cut -f1))
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=./:] ]] && compopt -o nospace
}
complete -o default -F _fedhca2 fedhca2
""",
    "zsh": r"""
#compdef fedhca2
_fedhca2() {
    local line; local -a parts whole whole_shown open open_shown
    for line in "${(@f)$(_FEDHCA2_COMPLETE=complete_line COMP_LINE="${(j: :)words[1,CURRENT]}" "${words[1]}")}"; do
        [[ -z $line ]] && continue
        parts=("${(@s:	:)line}")
        if [[ $parts[1] == *[=./:] ]]; then open+=("$parts[1]"); open_shown+=("${(j: -- :)parts}")
        else whole+=("$parts[1]"); whole_shown+=("${(j: -- :)parts}"); fi
    done
    (( $#open + $#whole )) || { _files; return }
    compadd -Q -l -S '' -d open_shown -a open
    compadd -Q -l -d whole_shown -a whole
}
compdef _fedhca2 fedhca2
""",
    "fish": r"""
function _fedhca2
    set -l found (env _FEDHCA2_COMPLETE=complete_line COMP_LINE=(commandline -cp | string collect) fedhca2)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c fedhca2 -f -a '(_fedhca2)'
""",
}


@app.command()
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")]) -> None:
    """Print a script that makes a shell complete this command with the Tab key."""
    typer.echo(SCRIPTS[shell].strip())


class LineComplete(ShellComplete):
    """Completes the last word of COMP_LINE; bash wants the part of it after its own breaks, which is COMP_WORD."""

    name = "line"
    source_template = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one to complete, and that one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        last = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], last

    def complete(self) -> str:
        """All proposals."""
        args, last = self.get_completion_args()
        start = re.match(r"(--?[\w-]+=)?", last)
        before = start[0] if start else ""  # --set=rou: the option's value is what is completed
        skipped = len(last) - len(os.environ.get("COMP_WORD", last))
        found = [item for item in self.get_completions(args, last) if item.type == "plain"]
        return "\n".join(f"{(before + item.value)[skipped:]}\t{item.help or ''}".rstrip("\t") for item in found)


add_completion_class(LineComplete)


def experiments(incomplete: str) -> Iterator[str]:
    """Embedded experiments, and YAML files."""
    yield from (name for name in embedded_names() if name.startswith(incomplete))
    for path in _entries(incomplete):
        if path.is_dir() and incomplete:
            yield f"{path}/"
        elif path.suffix in SUFFIXES:
            yield str(path)


def run_folders(incomplete: str) -> Iterator[str]:
    """Folders of runs, at first those in runs/, and folders on the way there."""
    for path in _entries(incomplete or ("runs/" if Path("runs").is_dir() else "")):
        if (path / CONFIG).is_file():
            yield str(path)
        elif path.is_dir():
            yield f"{path}/"


def methods(incomplete: str) -> Iterator[str]:
    """Methods, also as the last of several with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    names = _schema()["properties"]["method"]["then"]["anyOf"][0]["enum"]
    return (f"{before}{comma}{name}" for name in names if name.startswith(last))


def trackers(incomplete: str) -> Iterator[str]:
    """Built-in trackers; a place follows."""
    return (f"{name}=" for name in ("tensorboard", "mlflow", "wandb") if name.startswith(incomplete))


def settings(incomplete: str) -> Iterator[Proposal]:
    """Keys of the experiment that the line names, or the values of one."""
    key, equals, value = incomplete.partition("=")
    *steps, last = [*key.split("."), *([value] if equals else [])]
    # Read from the line itself: click does not parse a line whose last option lacks its value.
    named = split_arg_string(os.environ.get("COMP_LINE", ""))[2:]
    schema, place = [_schema()], next(filter(None, map(_values, named)), _values("demo"))
    for step in steps:
        schema = [below for each in _views(schema, place) for below in _below(each, step)]
        place = place.get(step, {}) if isinstance(place, Mapping) else _entry(place, step)
    views = list(_views(schema, place))
    if equals:
        words = [(f"{key}={word}", "") for word in dict.fromkeys(word for view in views for word in _words(view))]
        return (word for word in words if word[0].startswith(incomplete))
    before = "".join(f"{step}." for step in steps)
    return ((f"{before}{name}{end}", meaning) for name, end, meaning in _keys(views, place) if name.startswith(last))


@cache
def _schema() -> Schema:
    schema: Schema = json.loads((resources.files("fedhca2.configs") / SCHEMA).read_text("utf-8"))
    return schema


def _entries(incomplete: str) -> list[Path]:
    """The visible entries of a folder whose path begins with this."""
    folder, start = os.path.split(incomplete)
    try:
        found = sorted(Path(folder).iterdir())
    except OSError:
        return []
    return [path for path in found if path.name.startswith(start) and not path.name.startswith(".")]


def _values(source: str, below: tuple[str, ...] = ()) -> Any:
    """What an experiment's file and those that it extends say; nothing if they cannot be read.

    `below` are the files on the way here: one that extends any of them goes in circles.
    """
    path = Path(source)
    file = path if path.suffix in SUFFIXES else path / CONFIG if (path / CONFIG).is_file() else embedded_file(source)
    try:
        values = read_yaml(file) if file else {}
    except (OSError, YamlError):
        values = {}
    if not isinstance(values, dict):
        return {}
    parent = str(values.get("extends", ""))
    beside = str(path.parent / parent) if parent.endswith(SUFFIXES) else parent
    last = not parent or beside in (source, *below)
    return values if last else _over(_values(beside, (source, *below)), values)


def _over(base: Any, changes: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    return {**base, **{key: _over(base.get(key), value) for key, value in changes.items()}}


def _entry(place: Any, step: str) -> Any:
    return place[int(step)] if isinstance(place, list) and step.isdigit() and int(step) < len(place) else {}


def _views(schemas: Iterable[Schema], place: Any) -> Iterator[Schema]:
    """The schemas that may apply to what is at a place, with references and conditions resolved."""
    for schema in schemas:
        yield schema
        below = [each for key in ("allOf", "anyOf", "oneOf") for each in schema.get(key, ())]
        if "$ref" in schema:
            found: Any = _schema()
            for step in schema["$ref"].split("/")[1:]:
                found = found[step]
            below.append(found)
        if "if" in schema and _may_hold(schema["if"], place):
            below.append(schema.get("then", {}))
        if "else" in schema:
            below.append(schema["else"])
        yield from _views(below, place)


def _may_hold(condition: Schema, place: Any) -> bool:
    """Whether a condition on a `kind` or `name` may hold: it fails only if the place has another."""
    known = place if isinstance(place, Mapping) else {"name": place} if isinstance(place, str) else {}
    wanted = {key: held["const"] for key, held in condition.get("properties", {}).items() if "const" in held}
    if "not" in condition:
        return not any(key in known for key in condition["not"].get("required", ()))
    return all(known.get(key) == value for key, value in wanted.items())


def _below(schema: Schema, step: str) -> Iterator[Schema]:
    if step in schema.get("properties", {}):
        yield schema["properties"][step]
    elif isinstance(schema.get("additionalProperties"), dict):
        yield schema["additionalProperties"]
    if isinstance(schema.get("items"), dict) and step.isdigit():
        yield schema["items"]


def _keys(views: Iterable[Schema], place: Any) -> Iterator[tuple[str, str, str]]:
    """The keys at a place: each with '.' if more follows and '=' if not, and with its meaning."""
    found: dict[str, list[Schema]] = {}
    for view in views:
        for name, schema in view.get("properties", {}).items():
            found.setdefault(name, []).append(schema)
        if isinstance(view.get("additionalProperties"), dict) and isinstance(place, Mapping):
            for name in place.keys() - view.get("properties", {}).keys():
                found.setdefault(str(name), []).append(view["additionalProperties"])
        if isinstance(view.get("items"), dict) and isinstance(place, list):
            for number in range(len(place)):
                found.setdefault(str(number), []).append(view["items"])
    for name, schemas in found.items():
        at = place.get(name, {}) if isinstance(place, Mapping) else _entry(place, name)
        below = list(_views(schemas, at))
        deeper = any("properties" in view or isinstance(view.get("additionalProperties"), dict) for view in below)
        listed = isinstance(at, list) and any(isinstance(view.get("items"), dict) for view in below)
        deeper = deeper or (listed and bool(at) and isinstance(at[0], Mapping))
        meaning = next((view["description"].partition("\n")[0] for view in below if view.get("description")), "")
        yield name, "." if deeper else "=", meaning
        if deeper and any(view.get("enum") for view in below):
            yield name, "=", meaning


def _words(view: Schema) -> list[str]:
    """The values that a schema lists."""
    if view.get("type") == "boolean":
        return ["true", "false"]
    words = [*view.get("enum", ()), *([view["const"]] if "const" in view else ())]
    return [str(word) for word in words]


ExperimentName = Annotated[
    str, typer.Argument(help="A YAML file, or the name of an embedded experiment.", autocompletion=experiments)
]
FinishedRun = Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=run_folders)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting: --set rounds=5 --set method.c=0.2",
        autocompletion=settings,
    ),
]
