"""A page for every public module: what docs/api.md lists, with signatures and docstrings from the code."""

import inspect
import re
from importlib import import_module
from types import ModuleType

MODULES = ("fedhca2", "fedhca2.methods", "fedhca2.flower", "fedhca2.tasks", "fedhca2.data")


def api_page(module, listing):
    """One page; `listing` is the text of docs/api.md."""
    offered = import_module(module)
    lines = [f"# {module}", "", (offered.__doc__ or "").partition("\n")[0], ""]
    for names, meaning in rows_of(module, listing):
        for name in names:
            lines += [*entry(module, name, getattr(offered, name), home_of(name, module), meaning), ""]
    return "\n".join(lines)


def rows_of(module, listing):
    """The rows of docs/api.md about a module: names, and what they are."""
    section = re.search(rf"^## `{re.escape(module)}`\n(.*?)(?=^## |\Z)", listing, re.M | re.S)[1]
    rows = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`(\w+)`", names), meaning) for names, meaning in rows]


def home_of(name, module):
    """The module whose page describes a name: the first that offers it, but rather a part than the whole."""
    return next((one for one in MODULES[1:] if name in import_module(one).__all__), module)


def entry(module, name, value, home, meaning):
    """What a page says about one name."""
    if isinstance(value, ModuleType):
        return ["```{eval-rst}", f".. automodule:: {value.__name__}", "   :members:", "```"]
    if home != module:
        role = "class" if inspect.isclass(value) else "data"
        return [f"{{py:{role}}}`{module}.{name} <{home}.{name}>`: see there."]
    if inspect.isclass(value):
        return ["```{eval-rst}", f".. autoclass:: {home}.{name}", "   :members:", "```"]
    if inspect.isroutine(value):
        return ["```{eval-rst}", f".. autofunction:: {home}.{name}", "```"]
    return [f"```{{py:data}} {home}.{name}", f"{meaning[0].upper()}{meaning[1:]}.", "```"]
