"""Methods from outside the package, named by import path or file."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from fedhca2.config import suggest
from fedhca2.methods.catalogue import METHODS
from fedhca2.methods.method import Method


def imported(name: str) -> Method:
    """Import the method that a path names."""
    source, separator, attribute = name.rpartition(":")
    if not separator:
        raise ValueError(
            f"unknown method {name!r}. {suggest(name, METHODS)}; or package.module:NAME, or path/to/file.py:NAME"
        )
    try:
        module = _from_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except (ImportError, OSError, SyntaxError) as error:
        raise ValueError(f"method {name!r}: {source} cannot be imported: {error}") from error
    method = getattr(module, attribute, None)
    if not isinstance(method, Method):
        methods = [key for key, value in vars(module).items() if isinstance(value, Method)]
        found = f"found {type(method).__name__}. {suggest(attribute, methods)}"
        raise ValueError(f"method {name!r}: {attribute} should be a Method, {found}")
    return method


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
