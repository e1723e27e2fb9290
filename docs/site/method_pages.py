"""A page for every method of the catalogue: source and settings from the code, formulas from docs/methods.md."""

import re

from fedhca2.cli.show import settings_in, shared_parts
from fedhca2.methods import METHODS, components_of

WEIGHTS = "| method | weights |"  # the head of the table with rows about methods


def method_page(name, overview):
    """One page; `overview` is the text of docs/methods.md, one folder up."""
    method = METHODS[name]
    about = from_folder_below(explanation(name, overview))
    parts = [settings_table(part, component) for part, component in components_of(method).items()]
    everywhere = table(each for each in settings_in(method) if each.name == "batch_norm")
    return f"""\
# `{name}`

Source: {method.reference}. Shared: {shared_parts(method)}. Try it: `fedhca2 run demo --set method={name}`.

## Formula

{about}

## Settings

{"".join(parts)}**Every method** also has

{everywhere}
[All methods](../methods.md), and how they [differ from the papers](../deviations.md).
"""


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
    """GitHub's name of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def from_folder_below(text):
    """Change links of a page so that they work in a folder below it."""
    text = re.sub(r"\]\(#", "](../methods.md#", text)
    return re.sub(r"\]\((?!\.\./methods\.md|https?:)", "](../", text)


def settings_table(part, component):
    """What a component is, and its settings; nothing if it has none."""
    found = [each for each in settings_in(component) if each.name != "kind"]
    head = f"**{part}**: {{py:class}}`~fedhca2.methods.{type(component).__name__}`. "
    return f"{head}{found[0].about}\n\n{table(found)}\n" if found else ""


def table(settings):
    """A row for each of these settings."""
    rows = [["setting", "default", "values", "meaning"], ["---"] * 4]
    for each in settings:
        cells = [f"`{each.name}`", each.value, each.values, each.meaning]
        rows.append([cell.replace("|", r"\|") for cell in cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
