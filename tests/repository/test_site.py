"""The site: its pages are made from the code, and its check finds what is broken. `make docs` builds it."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from command import invoke
from fedhca2.methods import METHODS, settings_of

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    return import_module


@pytest.fixture
def method_page(load):
    overview = (DOCS / "methods.md").read_text("utf-8")
    return lambda name: load("method_pages").method_page(name, overview)


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_page_has_its_source_and_all_settings(method_page, name):
    page = method_page(name)
    assert METHODS[name].reference in page
    assert [key for key in settings_of(METHODS[name]) if f"| `{key}` |" not in page] == []


def test_a_methods_page_has_its_own_formula_or_leads_to_the_section_that_it_shares(method_page):
    assert r"\tilde A_{i,p} = \sum_j \mathrm{softmax}_j" in method_page("fedhca2")
    assert r"\arg\min_{v \ge e_i/N} v^\top G v" in method_page("upgrad")
    assert r"\text{median}_j" in method_page("norm_clipping")
    assert "[Robust methods](../methods.md#robust-methods)" in method_page("krum")


def test_a_method_that_is_not_explained_is_an_error(load):
    with pytest.raises(ValueError, match=r"docs/methods\.md should explain 'fedavg'"):
        load("method_pages").method_page("fedavg", "# Methods\n\n## `fedprox`\n\nLike it.\n")


def test_links_of_a_methods_page_lead_one_folder_up(load):
    moved = load("method_pages").from_folder_below("[a](#a) [b](results.md#b) [c](https://torchjd.org)")
    assert moved == "[a](../methods.md#a) [b](../results.md#b) [c](https://torchjd.org)"


def test_every_page_is_in_the_navigation_once(load):
    text = load("stage").written_pages()["index.md"]
    listed = re.findall(r"^/(docs/[\w/-]+)$", text, re.M)
    paths = [*DOCS.glob("*.md"), *DOCS.glob("notebooks/*.ipynb")]
    made = ["docs/gallery", "docs/decisions"]
    assert sorted(listed) == sorted([*(str(path.relative_to(DOCS.parent).with_suffix("")) for path in paths), *made])


def test_every_public_name_has_an_entry(load):
    pages = load("api_pages")
    listing = (DOCS / "api.md").read_text("utf-8")
    for module in pages.MODULES:
        page = pages.api_page(module, listing)
        missing = [name for name in import_module(module).__all__ if not re.search(rf"\b{name}\b", page)]
        assert missing == []


def test_a_link_to_a_source_file_leads_to_a_page_with_the_file(load):
    stage = load("stage")
    text = "[the command](../src/fedhca2/cli/run.py), [an app](../examples/flower_app)"
    changed = stage.followed("docs/one-run.md", text)
    assert changed == "[the command](../src/fedhca2/cli/run.py.md), [an app](../examples/flower_app/README.md)"
    assert "def run(" in stage.listings("docs/one-run.md", text)["src/fedhca2/cli/run.py.md"]


@pytest.mark.parametrize(
    ("docstring", "markup"),
    [
        ("Of `x`.", "Of ``x``."),
        (r"With $\sum_i w_i$.", r"With :math:`\sum_i w_i`."),
        ("$$a\n= b$$", ".. math::\n\n   a\n   = b"),
        ("``x`` stays", "``x`` stays"),
    ],
)
def test_docstrings_are_read_as_markdown(load, docstring, markup):
    assert load("docstrings").to_rst(docstring) == markup


@pytest.fixture
def faults(load, tmp_path):
    """What the check says about a page in a folder with `other.html`, which has an anchor `there`."""

    def faults(body):
        (tmp_path / "other.html").write_text('<h1 id="there">Other</h1>')
        (tmp_path / "page.html").write_text(f"<body>{body}</body>")
        return list(load("check").faults(tmp_path))

    return faults


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="other.html#there">', ""),
        ('<a href="#here"><p id="here">', ""),
        ('<a href="https://arxiv.org/abs/2311.13250">', ""),
        ('<img src="data:image/png;base64,AA">', ""),
        ('<a href="gone.html">', "gone.html should lead to a file"),
        ('<a href="other.html#gone">', "other.html#gone should lead to a place"),
        ('<a href="#gone">', "#gone should lead to a place"),
        ('<script src="https://cdn.example.org/x.js"></script>', "should load nothing from elsewhere"),
        ('<link rel="stylesheet" href="//cdn.example.org/x.css">', "should load nothing from elsewhere"),
        ("<style>@import 'https://fonts.example.org/x';</style>", "should load nothing from elsewhere"),
    ],
)
def test_the_check_finds_a_fault(faults, body, fault):
    reported = faults(body)
    assert len(reported) == bool(fault)
    assert fault in "".join(reported)


def test_the_gallery_gives_every_command_what_it_needs(load):
    for line in re.findall(r"`fedhca2 ([a-z ]+ [A-Z][^`]*)`", load("gallery").TEXT):
        assert "Usage:" not in invoke(*line.split()).output, line
