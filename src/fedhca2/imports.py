"""The one way to import what users bring along: `path/to/file.py:NAME` or `package.module:NAME`.

A path in a config runs code. So a path that comes over the network must be refused before it gets here. A run's folder
may come from anyone: what it names is imported only if the user allows it, or has already run it.
"""

import importlib
import importlib.util
import inspect
import logging
import os
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import ValidationInfo

from fedhca2.config import suggest
from fedhca2.errors import Fault, UserError
from fedhca2.live import find, is_live
from fedhca2.whole_files import private_folder, write_whole

FORMS = "path/to/file.py:NAME or package.module:NAME"
GONE = "an object that was handed over in Python, which this process does not have"


def same_modules() -> dict[str, str]:
    """The environment in which another Python process finds the modules that this one finds, and no others.

    With -m, Python would otherwise look for them in the working directory first, which may be anyone's.
    """
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def is_import_path(name: str) -> bool:
    """Whether a name is an import path rather than the name of something built in.

    >>> is_import_path("my_data.py:Shelves"), is_import_path("nyud")
    (True, False)
    """
    return ":" in name


def folders(info: ValidationInfo) -> list[Path]:
    """The folders in which relative paths of the experiment are looked up."""
    return list((info.context or {}).get("folders", ()))


def resolve_path(path: str, folders: Iterable[Path]) -> str:
    """The import path with its file, if it has one, from the first folder that has it, as an absolute path.

    A file that is in none of the folders is looked up in the working directory.

    >>> resolve_path("package.module:NAME", [])
    'package.module:NAME'
    """
    source, _, attribute = path.rpartition(":")
    resolved = f"{in_folders(Path(source), folders).absolute()}:{attribute}" if source.endswith(".py") else path
    _require_allowed(resolved)
    return resolved


def file_name(path: str) -> str:
    """The import path without the folder of its file, which differs from machine to machine.

    >>> file_name("/srv/my_model.py:Temporal")
    'my_model.py:Temporal'
    """
    source, _, attribute = path.rpartition(":")
    return f"{Path(source).name}:{attribute}" if source.endswith(".py") else path


def in_folders(path: Path, folders: Iterable[Path]) -> Path:
    """A path in the first of these folders that has it, or the same path if none has."""
    return next((folder.absolute() / path for folder in folders if (folder / path).exists()), path)


def load(path: str, expected: str, fits: Callable[[Any], bool]) -> Any:
    """Import what a path names; raises ValueError if there is no such thing, or if it is not what is expected."""
    source, separator, attribute = path.rpartition(":")
    if not separator:
        raise ValueError(f"expected {FORMS}, got {path!r}")
    _require_allowed(path)
    if is_live(path):
        live = find(path)
        if live is None:
            raise ValueError(f"expected {FORMS}, got {path!r}, {GONE}")
        if not fits(live.value):
            raise ValueError(f"{path}: expected {expected}, got {type(live.value).__name__}")
        return live.value
    try:
        module = _import(source)
    except Exception as error:  # a module may raise anything
        got = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise ValueError(f"{source} cannot be imported: {got}") from error
    named = getattr(module, attribute, None)
    if not fits(named):
        options = [name for name, value in vars(module).items() if fits(value) and not name.startswith("_")]
        listed = suggest(attribute if named is None else "", options)  # what is there is not misspelt
        got = "nothing of that name" if named is None else type(named).__name__
        raise ValueError(f"{attribute}: expected {expected}, got {got}. {listed}")
    return named


def _import(source: str) -> ModuleType:
    """Import a module, or a file, which is loaded once."""
    if not source.endswith(".py"):
        return importlib.import_module(source)
    key = str(Path(source).resolve())
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, source)
        if spec is None or spec.loader is None:
            raise ImportError("not a Python file")
        sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[key])
        except BaseException:
            del sys.modules[key]
            raise
    return sys.modules[key]


class NotAllowedError(UserError):
    """A file of a run's folder names code that the user has neither allowed nor run."""


_allowed = set[str]()  # by the user, in this process
_refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)  # None: everything may be imported


def require_paths(where: str, paths: Iterable[str]) -> None:
    """Raise UserError unless other processes can import what is at all these paths.

    :param where: what starts other processes.
    """
    if here := [path for path in paths if is_live(path) or path.startswith("__main__:")]:
        expected = f"expected import paths ({FORMS}), since clients run in other processes"
        raise UserError(where, f"{expected}, got {here[0]!r}, which only this process knows")


def allow_code(sources: Iterable[str]) -> None:
    """Let runs' folders name these files (`path/to/file.py`) and modules (`package.module`) in this process.

    A name in them may follow, as in an import path.
    """
    _allowed.update(_canonical(each if each.endswith(".py") else each.rpartition(":")[0] or each) for each in sources)


def is_allowed(path: str) -> bool:
    """Whether a run's folder may name what is at this import path: code that the user has allowed or run, unchanged."""
    source = path.rpartition(":")[0]
    if _canonical(source) in _allowed or find(path) is not None:
        return True
    try:
        notes = [_note_of(file) for file in _files_of(source)]
    except OSError:
        return False
    return bool(notes) and all(note.is_file() for note in notes)


@contextmanager
def only_allowed(file: Path) -> Iterator[None]:
    """Import nothing meanwhile that is not allowed; raises NotAllowedError if this file of a run's folder names it."""
    refused: list[str] = []
    token = _refused.set(refused)
    try:
        yield
    except ValueError:
        if not refused:
            raise
    finally:
        _refused.reset(token)
    if refused:
        raise NotAllowedError.of(_not_allowed(path, file) for path in dict.fromkeys(refused))


def _not_allowed(path: str, file: Path) -> Fault:
    if is_live(path):
        return Fault(str(file), f"expected {FORMS}, got {path!r}, {GONE}")
    code = "code that you have run on this machine and not changed since"
    hint = f"if you trust it, add --allow-code {shlex.quote(path.rpartition(':')[0])}"
    return Fault(str(file), f"expected {code}, got {path!r:.200}; {hint}")


def _require_allowed(path: str) -> None:
    """Raise ValueError if what is read names code that it may not name."""
    refused = _refused.get()
    if refused is not None and is_import_path(path) and not is_allowed(path):
        refused.append(path)
        raise ValueError(f"{path!r:.200} is not allowed")


def remember_code(paths: Iterable[str]) -> None:
    """Note that this user runs what is at these import paths, so that the run's folder may name it from now on.

    The notes are outside of every run's folder, which nobody else can write: in $XDG_STATE_HOME/fedhca2/code.
    """
    for path in [path for path in dict.fromkeys(paths) if not is_live(path)]:
        try:
            for file in _files_of(path.rpartition(":")[0]):
                note = _note_of(file)
                private_folder(note.parent)
                write_whole(note, os.fsencode(file) + b"\n")
        except OSError as error:
            logging.getLogger("fedhca2").warning("%s: later commands need --allow-code: %s", path, error)


def _canonical(source: str) -> str:
    return str(Path(source).resolve()) if source.endswith(".py") else source


def _files_of(source: str) -> list[Path]:
    """The files that importing a file or a module would run, those of its packages first; runs none of them."""
    if source.endswith(".py"):
        return [Path(source).resolve()]
    files, name, folders = list[Path](), "", None
    for step in source.split("."):
        name = f"{name}.{step}" if name else step
        specs = (finder.find_spec(name, folders) for finder in sys.meta_path if step.isidentifier())
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return []
        files += [Path(spec.origin).resolve()] if spec.origin else []  # a namespace has no file
        folders = spec.submodule_search_locations
    return files


def _note_of(file: Path) -> Path:
    """The note that the user has run a file with its present content; raises OSError if there can be none."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = configured if configured.is_absolute() else Path("~/.local/state")
    try:
        state = state.expanduser()  # never a relative folder: the working directory may belong to someone else
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from None
    return state / "fedhca2" / "code" / sha256(os.fsencode(file) + b"\0" + file.read_bytes()).hexdigest()


def one_line(error: Exception) -> str:
    """The kind of an error, what it says, and the line of the user's own code that it comes from, in one line."""
    lines = [
        f" ({Path(frame.f_code.co_filename).name}, line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_users(frame.f_code.co_filename)
    ]
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{said and f': {said}'}{''.join(lines[-1:])}"


@contextmanager
def explain_errors(where: str, expected: str) -> Iterator[None]:
    """Raise whatever a user's own code or file raises in this block as a UserError of one line with this location.

    :param expected: what goes before the error, such as "expected a file of tensors".
    """
    try:
        yield
    except Exception as error:
        raise UserError(where, f"{expected}, got {one_line(error)}") from error


def is_raised_in(error: Exception, paths: Collection[str]) -> bool:
    """Whether an error was raised in code at one of these import paths, or in what it called."""
    live, named = any(map(is_live, paths)), [path for path in paths if not is_live(path)]
    files = {file for path in named for file in _files_of(path.rpartition(":")[0])}
    called = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
    return any(Path(file).resolve() in files or (live and _is_users(file)) for file in called)


def _is_users(file: str) -> bool:
    """Whether code of this file is neither this package's, nor Python's, nor an installed package's."""
    path = Path(file)
    others = (Path(__file__).parent, Path(sysconfig.get_path("stdlib")))
    installed = {"site-packages", "dist-packages"}.intersection(path.parts)
    return not installed and not file.startswith("<frozen") and not any(map(path.is_relative_to, others))


def parameters(made_by: Any, skip: int = 0) -> dict[str, tuple[Any, Any]]:
    """The types and defaults of the named parameters of a class or function, except the first `skip` ones.

    A parameter without a type has Any, and one without a default `...`. Raises ValueError if a type cannot be read.
    """
    constructor = vars(made_by).get("__init__", made_by.__init__) if isinstance(made_by, type) else made_by  # type: ignore[misc]
    try:
        hints = get_type_hints(constructor, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ValueError(f"{made_by.__name__}: expected parameters with types, got {one_line(error)}") from error
    named = list(inspect.signature(made_by).parameters.values())[skip:]
    return {
        each.name: (hints.get(each.name, Any), ... if each.default is each.empty else each.default)
        for each in named
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
