"""The one way to import what users bring along: `path/to/file.py:NAME` or `package.module:NAME`.

A path in a config runs code. So a path that comes over the network must be refused before it gets here.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationInfo

from fedhca2.config import suggest

FOLDERS = "folders"  # of the experiment's files, in the context of a validation
FORMS = "path/to/file.py:NAME or package.module:NAME"


def is_import_path(name: str) -> bool:
    """Whether a name is an import path rather than the name of something built in.

    >>> is_import_path("my_data.py:Shelves"), is_import_path("nyud")
    (True, False)
    """
    return ":" in name


def folders(info: ValidationInfo) -> list[Path]:
    """The folders in which relative paths of the experiment are looked for."""
    return list((info.context or {}).get(FOLDERS, ()))


def located(path: str, folders: Iterable[Path]) -> str:
    """The import path with its file, if it has one, from the first folder that has it, as an absolute path.

    A file that is in none of the folders is looked for in the working directory.

    >>> located("package.module:NAME", [])
    'package.module:NAME'
    """
    source, _, attribute = path.rpartition(":")
    if not source.endswith(".py"):
        return path
    return f"{in_folders(Path(source), folders).absolute()}:{attribute}"


def file_name(path: str) -> str:
    """The import path without the folder of its file, which differs from machine to machine.

    >>> file_name("/srv/my_model.py:Temporal")
    'my_model.py:Temporal'
    """
    source, _, attribute = path.rpartition(":")
    return f"{Path(source).name}:{attribute}" if source.endswith(".py") else path


def in_folders(path: Path, folders: Iterable[Path]) -> Path:
    """A path in the first of these folders that has it, or the same path if none has."""
    candidates = (folder.absolute() / path for folder in folders if (folder / path).exists())
    return next(candidates, path)


def load(path: str, wanted: str, fits: Callable[[Any], bool]) -> Any:
    """Import what a path names; raises ValueError if there is no such thing, or if it is not what is wanted."""
    source, separator, attribute = path.rpartition(":")
    if not separator:
        raise ValueError(f"should be {FORMS}, found {path!r}")
    module = _load_module(source)
    named = getattr(module, attribute, None)
    if not fits(named):
        options = [name for name, value in vars(module).items() if fits(value) and not name.startswith("_")]
        raise ValueError(f"{attribute} should be {wanted}, found {_shown(named)}. {suggest(attribute, options)}")
    return named


def told(error: Exception) -> str:
    """The kind of an error and what it says, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _shown(value: object) -> str:
    return "nothing of that name" if value is None else type(value).__name__


def _load_module(source: str) -> ModuleType:
    """Import a file or a module of a package; raises ValueError if it cannot be imported."""
    try:
        return _from_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:  # a module may raise anything
        found = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
        raise ValueError(f"{source} cannot be imported: {' '.join(found.split())}") from error


def _from_file(path: Path) -> ModuleType:
    """Load the module in a file, once."""
    key = str(path.resolve())
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, path)
        if spec is None or spec.loader is None:
            raise ImportError("not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[key]
            raise
    return sys.modules[key]
