"""The site's source: the repository's Markdown as it is, and pages that are made from the code.

The folder has the repository's layout, so that links work as on GitHub. README.md becomes the first page.
"""

import posixpath
import re
from pathlib import Path

from api_pages import MODULES, api_page
from gallery import gallery_page
from method_pages import method_page

from fedhca2.methods import METHODS

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[)#])")
LISTED = {".py": "python", ".yaml": "yaml", "Dockerfile": "docker"}  # what gets a page if another page links to it
ORPHAN = "---\norphan: true\n---\n\n"


def pages(*names):
    """Pages in docs/."""
    return [f"docs/{name}" for name in names]


# The navigation: the title of a group, and its pages. Pages that are in no group come last.
CONTENTS = {
    "Tutorials": pages(
        "getting-started",
        "notebooks/first-federation",
        "from-zero",
        "notebooks/molecules",
        "two-machines",
        "notebooks/flower",
    ),
    "How to": pages(
        *(
            "choose-a-method",
            "compare-methods",
            "own-data",
            "own-task",
            "beyond-images",
            "own-model",
            "models",
            "notebooks/own-method",
            "own-tracker",
            "gpus",
        ),
        *("in-python", "use-models", "many-machines", "services", "secure-aggregation", "capacity", "own-flower-app"),
        *("experiments", "migrate", "cookbook", "troubleshooting"),
    ),
    "Reference": pages(
        *(
            "command-line",
            "settings",
            "data-kinds",
            "site-file",
            "run-folder",
            "methods",
            "encoders",
            "api",
            "shell",
            "platforms",
        ),
        *("paper-to-code", "deviations", "gallery"),
    ),
    "Understand": pages(
        *("concepts", "results", "who-helps-whom", "security", "reliability", "performance", "why-this"),
        *("results-scenes", "results-photographs", "results-molecules", "results-making", "glossary"),
    ),
    "Project": ["CHANGELOG", "CONTRIBUTING", *pages("one-run", "decisions"), "SECURITY"],
}

CARDS = {  # on the first page
    "Learn": "[Your first federation](docs/getting-started.md), [from zero to your own](docs/from-zero.md), "
    "[two machines](docs/two-machines.md)",
    "Do": "[Choose a method](docs/choose-a-method.md), [bring your data](docs/own-data.md), "
    "[use trained models](docs/use-models.md), [cookbook](docs/cookbook.md)",
    "Look up": "[Commands](docs/command-line.md), [settings](docs/settings.md), [methods](docs/methods.md), "
    "[Python](docs/api.md)",
    "Understand": "[Concepts](docs/concepts.md), [results](docs/results.md), [security](docs/security.md), "
    "[glossary](docs/glossary.md)",
}


def write_source(target, extra):
    """Write all pages into a folder. What is unchanged keeps its time, so that Sphinx reads only what is new."""
    gallery = gallery_page(target / "docs" / "gallery", extra)
    pages = {**written_pages(), **made_pages(), "docs/gallery.md": gallery}
    for path, text in pages.copy().items():
        pages |= listings(path, text)
        pages[path] = followed(path, text)
    for path, text in pages.items():
        write(target / path, text.encode())
    for path in (ROOT / "docs" / "images").iterdir():
        write(target / path.relative_to(ROOT), path.read_bytes())
    written = [*target.rglob("*.md"), *target.rglob("*.ipynb")]
    for old in {str(path.relative_to(target)) for path in written} - set(pages):
        (target / old).unlink()


def written_pages():
    """The Markdown and the notebooks of the repository by path, with what the navigation needs."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    paths += [path for ending in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{ending}")]
    pages = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}
    pages = {path: ORPHAN + text if path.startswith("examples/") else text for path, text in pages.items()}
    placed = {page for group in CONTENTS.values() for page in group}
    others = [page for path in sorted((ROOT / "docs").glob("*.md")) if (page := f"docs/{path.stem}") not in placed]
    groups = [
        tree([f"/{page}" for page in group], f":caption: {title}\n")
        for title, group in {**CONTENTS, "More": others}.items()
        if group
    ]
    first, rest = pages.pop("README.md").split("\n## ", 1)
    pages["index.md"] = "\n".join([first, cards(), f"## {rest}", *groups])
    pages["docs/methods.md"] += tree([f"methods/{name}" for name in METHODS])
    pages["docs/api.md"] += tree([f"api/{module}" for module in MODULES])
    return pages


def cards():
    """Four ways into the pages."""
    found = "\n".join(f"```{{container}} card\n**{title}**\n\n{text}\n```" for title, text in CARDS.items())
    return f"````{{container}} cards\n{found}\n````\n"


def made_pages():
    """The pages about methods, modules and decisions, by path."""
    names = ("methods", "results", "deviations", "api")
    *about, listing = ((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in names)
    decisions = sorted(path.stem for path in (ROOT / "docs" / "decisions").glob("*.md"))
    return {
        **{f"docs/methods/{name}.md": method_page(name, *about) for name in METHODS},
        **{f"docs/api/{module}.md": api_page(module, listing) for module in MODULES},
        "docs/decisions.md": "# Decisions\n" + tree([f"decisions/{name}" for name in decisions], hidden=False),
    }


def tree(pages, options="", hidden=True):
    """A part of the navigation."""
    return "\n```{toctree}\n" + ":hidden:\n" * hidden + options + "\n".join(["", *pages]) + "\n```\n"


def listings(path, text):
    """A page for every source file that a page links to."""
    files = {file for link in LINK.findall(text) if language(file := leads_to(path, link))}
    return {
        f"{file.relative_to(ROOT)}.md": f"{ORPHAN}# {file.relative_to(ROOT)}\n\n"
        f"````{language(file)}\n{file.read_text('utf-8')}````\n"
        for file in files
    }


def followed(path, text):
    """The page with links to pages where it links to source files and folders."""

    def link(found):
        file = leads_to(path, found[0])
        if file.is_dir():
            return f"{found[0].rstrip('/')}/README.md"
        return f"{found[0]}.md" if language(file) else found[0]

    return LINK.sub(link, text)


def language(file):
    """The language of a file that gets a page; None for others."""
    return LISTED.get(file.suffix or file.name) if file.is_file() else None


def leads_to(path, link):
    """The file of the repository that a page links to."""
    return ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def write(path, content):
    """Write a file, unless it is there already."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
