"""A page for every method of the catalogue: source and settings from the code, formulas from docs/methods.md."""

import re

from fedhca2.cli.catalogue import allowed, as_in_config, shared_parts
from fedhca2.methods import METHODS, Method, components_of

EVERY_METHOD = ("batch_norm", "common")
WEIGHTS = "| method | weights |"  # the head of the table with rows about methods
HEAD = ["| setting | default | values | meaning |", "| --- | --- | --- | --- |"]


def method_page(name, overview):
    """One page; `overview` is the text of docs/methods.md, one folder up."""
    method = METHODS[name]
    words = (
        f"Source: {method.reference}. Shared: {shared_parts(method)}. Try it: `fedhca2 run demo --set method={name}`."
    )
    lines = [
        f"# `{name}`",
        "",
        words,
        "",
        "## Formula",
        "",
        from_folder_below(explanation(name, overview)),
        "",
        "## Settings",
        "",
    ]
    for part, component in components_of(method).items():
        fields = {key: field for key, field in type(component).model_fields.items() if key != "kind"}
        if fields:
            offered = f"{{py:class}}`~fedhca2.methods.{type(component).__name__}`"
            about = (type(component).__doc__ or "").partition("\n")[0]
            lines += [f"**{part}**: {offered}. {about}", "", *HEAD, *rows(component, fields), ""]
    lines += ["**Every method** also has", "", *HEAD]
    lines += rows(method, {key: Method.model_fields[key] for key in EVERY_METHOD})
    lines += ["", "[All methods](../methods.md), and how they [differ from the papers](../deviations.md).", ""]
    return "\n".join(lines)


def explanation(name, overview):
    """What the page of all methods says about one: its section, or its paragraph or row in a section of several."""
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", overview, re.M | re.S))
    if own := sections.get(f"`{name}`"):
        return own.strip()
    for title, text in sections.items():
        paragraph = re.search(rf"^\*\*(?:`\w+`\*\* and \*\*)?`{name}`.*?(?=^\*\*`|\Z)", text, re.M | re.S)
        row = re.search(rf"^\| `{name}` \| (.*?) \| [^|]* \|$", text, re.M) if WEIGHTS in text else None
        if found := paragraph or row:
            about = found[0].strip() if paragraph else f"**Weights**: {row[1]}."
            shared = re.split(r"^(?:\||\*\*`)", text, maxsplit=1, flags=re.M)[0].strip()
            return f"{about}\n\n**In common with others** ([{title}](#{anchor(title)})): {shared}"
    raise ValueError(f"docs/methods.md should explain {name!r} in a section, a paragraph or a row, found none")


def anchor(title):
    """GitHub's name of a heading.

    >>> anchor("One update for all")
    'one-update-for-all'
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def from_folder_below(text):
    """Change links of a page so that they work in a folder below it."""
    text = re.sub(r"\]\(#", "](../methods.md#", text)
    return re.sub(r"\]\((?!\.\./methods\.md|https?:)", "](../", text)


def rows(component, fields):
    """A row for each setting."""
    for key, field in fields.items():
        cells = [f"`{key}`", as_in_config(getattr(component, key)), allowed(field), field.description or ""]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
