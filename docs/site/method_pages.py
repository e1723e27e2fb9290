"""A page for every method of the catalogue: facts from the code, formulas from docs/methods.md, gains from results."""

import re

from method_facts import differences, local_work, measured, when, with_sums

from fedhca2 import methods
from fedhca2.cli.show import settings_in, shared_parts
from fedhca2.methods import METHODS, components_of

EVERYWHERE = ("batch_norm", "norms", "final_epochs", "adapters")  # settings of all methods
WEIGHTS = "| method | weights |"  # the head of the table with rows about methods


def method_page(name, overview, results="", deviations=""):
    """One page; the texts are those of docs/methods.md, docs/results.md and docs/deviations.md, one folder up."""
    method = METHODS[name]
    about = from_folder_below(explanation(name, overview))
    parts = [settings_table(part, component) for part, component in components_of(method).items()]
    everywhere = table(each for each in settings_in(method) if each.name in EVERYWHERE)
    gains = from_folder_below(measured(name, results)) or "Not in the recorded runs."
    rows = from_folder_below(differences(name, deviations))
    head = "| what | paper and released code | here | the other |\n| --- | --- | --- | --- |\n"
    return f"""\
# `{name}`

Source: {method.reference}. A client shares: {shared_parts(method)}. Try it: `fedhca2 run demo --set method={name}`.

## When to use it

Use it if: {when(name)}. [Choose a method](../choose-a-method.md) compares all of them.

## Formula

{about}

## Settings

{"".join(parts)}**Every method** also has

{everywhere}
## Measured

Δm over training alone in percent, mean ± standard deviation over seeds ([how to
read it](../results.md#how-to-read-the-tables)).

{gains}

## Cost

{local_work(name)} `--dry-run` prints what a client sends in a round.

## Secure aggregation

Whether it works if the server only gets [sums](../secure-aggregation.md):
{with_sums(name)}.

## Differences from the paper

{head + rows if rows else "No differences are listed."}

[All methods](../methods.md). [All deviations](../deviations.md).
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
    name = type(component).__name__
    head = f"**{part}**: {{py:class}}`~fedhca2.methods.{name}`. " if name in methods.__all__ else f"**{part}**: "
    return f"{head}{found[0].about}\n\n{table(found)}\n" if found else ""


def table(settings):
    """A row for each of these settings."""
    rows = [["setting", "default", "values", "meaning"], ["---"] * 4]
    for each in settings:
        cells = [f"`{each.name}`", each.value, each.values, each.meaning]
        rows.append([cell.replace("|", r"\|") for cell in cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
