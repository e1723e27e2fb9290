"""The page in a real browser: it opens without an error, draws every figure, and its tabs and sliders work."""

import os
from functools import cache
from pathlib import Path

import pytest
from chromium import launched, wait_until_drawn

from fedhca2.reports.page.write import write_page
from made_run import made_run

pytestmark = pytest.mark.slow

AWAY, REFUSED = ("shop", "home"), [("home", "no reply in time"), ("<b>node 7</b>", "unknown client")]
OWN = ("file:", "data:", "blob:")
ARTEFACTS = Path(os.environ.get("FEDHCA2_SCREENSHOTS", "build/screenshots"))


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = [made_run(folder / "local", "local"), made_run(folder / "fedhca2", better=1.1, away=AWAY, refused=REFUSED)]
    return {
        "single": write_page(runs[1:], folder / "single.html"),
        "several": write_page(runs, folder / "several.html"),
    }


@pytest.fixture(scope="module")
def complaints():
    """Errors of the browser and requests to the network."""
    return []


@pytest.fixture(autouse=True)
def no_complaint(complaints):
    yield
    assert complaints == []


@pytest.fixture(scope="module")
def opened(browser, pages, complaints):
    """A page at a width, opened once; a test may leave it at any tab."""

    @cache
    def open_page(name, width=1280):
        page = browser.new_page(viewport={"width": width, "height": 900}, offline=True)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(OWN) or complaints.append(request.url))
        page.goto(pages[name].as_uri())
        return page

    return open_page


@pytest.mark.parametrize("name", ["single", "several"])
def test_every_figure_of_every_tab_is_drawn(opened, name):
    page = opened(name)
    for tab in page.get_by_role("tab").all():
        tab.click()
        wait_until_drawn(page)
    assert page.locator("[data-figure]").count() == page.locator("[data-drawn]").count() > 5


def test_a_tab_shows_its_section_alone(opened):
    page = opened("single")
    page.get_by_role("tab", name="Cost").click()
    assert page.locator("section:visible").evaluate_all("all => all.map((one) => one.id)") == ["cost"]


def test_arrow_keys_move_between_tabs(opened):
    page = opened("single")
    page.get_by_role("tab", name="Results").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Training").get_attribute("aria-selected") == "true"


def test_an_address_opens_its_tab_at_the_top(opened, pages):
    page = opened("single")
    page.goto("about:blank")
    page.goto(pages["single"].as_uri() + "#updates")
    wait_until_drawn(page)
    assert page.locator("#updates").is_visible()
    assert page.evaluate("scrollY") == 0


def test_a_slider_changes_its_figure(opened):
    page = opened("single")
    page.get_by_role("tab", name="Conflicts").click()
    read = "document.querySelector('[data-figure=cosine-encoder]').data[0].z[0][1]"
    last = page.evaluate(read)
    page.locator("[data-moves=cosine-encoder]").focus()
    page.keyboard.press("Home")
    assert page.locator("label:has([data-moves=cosine-encoder]) output").inner_text() == "1"
    assert page.evaluate(read) != last


def test_a_phone_never_scrolls_sideways(opened):
    page = opened("single", width=390)
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab.inner_text()


def test_paper_shows_every_section_and_figure(opened):
    page = opened("single")
    page.emulate_media(media="print")
    wait_until_drawn(page)
    assert page.locator("section:visible").count() == page.get_by_role("tab", include_hidden=True).count()
    page.emulate_media(media="screen")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_screenshot_is_kept(opened, width):
    page = opened("single", width)
    page.get_by_role("tab", name="Conflicts").click()
    wait_until_drawn(page)
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    target = ARTEFACTS / f"report-{width}.png"
    page.screenshot(path=target, full_page=True)
    assert target.stat().st_size > 10_000


def test_who_was_left_out_can_be_seen_and_read(opened):
    page = opened("single")
    page.get_by_role("tab", name="Attendance").click()
    wait_until_drawn(page)
    assert page.locator("[data-figure=attendance] .heatmaplayer .hm").count() == 1
    assert page.locator("#attendance tbody tr").all_inner_texts() == [
        "home\t2\tno reply in time",
        "<b>node 7</b>\t2\tunknown client",
    ]
