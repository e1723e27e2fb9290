"""Pages of made runs, open in a browser."""

import json
from functools import cache

import pytest

from browser.chromium import launch
from fedhca2.reports.page.write import write_page
from fedhca2.run_folder.reader import RunFiles
from made_run import crowded_run, made_run, with_diagnostics

AWAY, REFUSED = ("shop", "home"), [("home", "no reply in time"), ("<b>node 7</b>", "unknown client")]
OWN = ("file:", "data:", "blob:")


@pytest.fixture(scope="module")
def hostile_name():
    """The name of a client that would run a script if a page took it for HTML."""
    return """<img src=x onerror="document.title='hurt'"> '\\"] %{x} </script><script>document.title='hurt'</script>"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, hostile_name):
    folder = tmp_path_factory.mktemp("pages")
    runs = [made_run(folder / "local", "local"), made_run(folder / "fedhca2", better=1.1, away=AWAY, refused=REFUSED)]
    made_run(folder / "fedhca2" / "baseline", "local", away=AWAY, refused=REFUSED)
    several = [*runs, *(made_run(folder / str(seed), better=1 + seed / 10, seed=seed) for seed in (1, 2))]
    runs_of = {"single": [with_diagnostics(runs[1])], "several": several, "crowd": [crowded_run(folder / "crowd")]}
    runs_of["hostile"] = [rename(made_run(folder / "hostile", better=1.1), "shop", hostile_name)]
    return {name: write_page(runs, folder / f"{name}.html") for name, runs in runs_of.items()}


def rename(run, client, name):
    """The run with another name for a client."""
    for file in ("metrics.jsonl", "result.json"):
        text = (run.path / file).read_text()
        for mark in ('"', "/"):
            text = text.replace(f'"{client}{mark}', json.dumps(name)[:-1] + mark)
        (run.path / file).write_text(text)
    return RunFiles.open(run.path)


@pytest.fixture(scope="module")
def complaints():
    """Errors of the browser and requests to the network."""
    return []


@pytest.fixture(autouse=True)
def no_complaint(complaints):
    yield
    assert complaints == []


@pytest.fixture(scope="module")
def open_page(browser, pages, complaints):
    """A page at a width, opened once; a test may leave it at any tab."""

    @cache
    def cached(name, width):
        page = browser.new_page(viewport={"width": width, "height": 900}, offline=True)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(OWN) or complaints.append(request.url))
        page.goto(pages[name].as_uri())
        return page

    return lambda name, width=1400: cached(name, width)
