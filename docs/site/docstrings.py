"""Docstrings for Sphinx: our Markdown becomes its markup, and a class of settings lists them."""

import inspect
import re

from fedhca2.config import Config
from fedhca2.configs import allowed_values, format_value

CODE = re.compile(r"(?<![`:])`([^`\n]+)`(?!`)")
FORMULA = re.compile(r"(?<!\$)\$([^$]+)\$(?!\$)")
DISPLAY = re.compile(r"^\$\$(.+?)\$\$$", re.DOTALL | re.MULTILINE)


def process(app, what, name, obj, options, lines):
    """Change the lines of one docstring."""
    lines[:] = to_rst("\n".join(lines)).splitlines()
    if isinstance(obj, type) and issubclass(obj, Config):
        explained = set(re.findall(r"^:param (\w+):", "\n".join(lines), re.M))
        lines += ["", *settings(obj, explained)]


def shorten(app, what, name, obj, options, signature, returns):
    """Fields by name alone, if they are listed below, or have defaults that nobody can read."""
    if what != "class" or not (issubclass(obj, Config) or " = <" in (signature or "")):
        return None
    return f"(*, {', '.join(key for key in inspect.signature(obj).parameters if key != 'kind')})", None


def to_rst(text):
    """Change code, formulas in a line, and formulas of their own."""
    text = DISPLAY.sub(lambda found: ".. math::\n\n" + re.sub("^", "   ", found[1].strip(), flags=re.M), text)
    text = CODE.sub(r"``\1``", text)
    return FORMULA.sub(lambda found: f":math:`{' '.join(found[1].split())}`", text)


def settings(config, explained=()):
    """A line for each setting that is not explained yet: its meaning, default and values."""
    schemas = config.model_json_schema()["properties"]
    for name, field in config.model_fields.items():
        if name != "kind" and name not in explained:
            value = field.get_default(call_default_factory=True)
            plain = not field.is_required() and not isinstance(value, Config) and value != ""
            known = "; ".join(
                filter(None, [f"default {format_value(value)}" if plain else "", allowed_values(schemas[name])])
            )
            about = to_rst(field.description or "").replace("|", r"\|")  # which would mark a substitution
            yield f":param {name}: {about}{f' ({known})' if known else ''}"


def find_public_name(app, env, node, contnode):
    """Lead a reference to the place where a class is defined to the module that offers it."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("fedhca2."):
        return None
    own = target.rpartition(".")[2]
    offered = sorted(name for name in env.domains.python_domain.objects if name.rpartition(".")[2] == own)
    if not offered or target in offered:
        return None
    python = env.domains.python_domain
    return python.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], offered[0], node, contnode)
