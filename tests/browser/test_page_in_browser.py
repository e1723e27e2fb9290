"""The page in a real browser: it opens without an error, draws every figure, and its tabs and sliders work."""

from pathlib import Path

import pytest

from browser.chromium import wait_until_drawn

pytestmark = pytest.mark.slow

CONTRAST = (Path(__file__).parent / "contrast.js").read_text("utf-8")


def show(page, name):
    """Open a tab, and wait until its figures are drawn."""
    page.get_by_role("tab", name=name).click()
    wait_until_drawn(page)


def every_tab(page):
    """Open one tab after the other."""
    for tab in page.get_by_role("tab").all():
        tab.click()
        wait_until_drawn(page)
        yield tab


@pytest.mark.parametrize("name", ["single", "several"])
def test_every_figure_of_every_tab_is_drawn(open_page, name):
    page = open_page(name)
    assert len(list(every_tab(page))) == page.get_by_role("tab").count()
    assert page.locator("[data-figure]").count() == page.locator("[data-drawn]").count() > 5


def test_paper_shows_every_section_and_figure(open_page):
    page = open_page("single")
    page.emulate_media(media="print")
    wait_until_drawn(page)
    assert page.locator("section:visible").count() == page.get_by_role("tab", include_hidden=True).count()
    page.emulate_media(media="screen")


def test_who_was_left_out_can_be_seen_and_read(open_page):
    page = open_page("single")
    show(page, "Participation")
    assert page.locator("[data-figure=attendance] .heatmaplayer .hm").count() == 1
    assert page.locator("#participation tbody tr").all_inner_texts() == [
        "home\t2\tno reply in time",
        "<b>node 7</b>\t2\tunknown client",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_both_themes(open_page, scheme):
    page = open_page("single")
    page.emulate_media(color_scheme=scheme)
    for name in ("Results", "Training", "Predictions"):
        show(page, name)
        texts = page.evaluate(CONTRAST)
        assert len(texts) > 20
        assert [one for one in texts if one[0] < 4.5] == []


def test_the_switch_changes_page_and_figures(open_page):
    page = open_page("single")
    page.emulate_media(color_scheme="light")
    show(page, "Training")
    looks = """[getComputedStyle(document.body).backgroundColor,
        document.querySelector("#training .xtick text").style.fill]"""
    before = page.evaluate(looks)
    page.get_by_role("button", name="Dark mode").click()
    after = page.evaluate(looks)
    page.get_by_role("button", name="Dark mode").click()
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert page.evaluate(looks) == before


def test_the_chosen_tab_is_not_under_the_cue_that_tabs_go_on(open_page):
    page = open_page("single", 390)
    ends = []
    for tab in every_tab(page):
        right, cue = tab.evaluate("""tab => {
            const list = tab.parentElement, style = getComputedStyle(list, "::after");
            const cue = style.content.includes("›") ? parseFloat(style.width) : 0;
            return [list.getBoundingClientRect().right - tab.getBoundingClientRect().right, cue];
        }""")
        assert right >= cue
        ends.append(cue)
    assert (ends[0] > 0, ends[-1]) == (True, 0)


@pytest.mark.parametrize("width", [1400, 390])
def test_delta_m_is_never_cut_off(open_page, width):
    page = open_page("several", width)
    show(page, "Results")
    cells = page.locator("#results table").first.locator("td:nth-child(2)")
    seen = cells.evaluate_all("""all => all.map((cell) => cell.getBoundingClientRect())
        .map((at) => at.left > 0 && at.right <= innerWidth)""")
    assert seen == [True, True]


def test_a_phone_never_scrolls_sideways_and_a_wide_table_shows_an_arrow(open_page):
    page = open_page("single", 390)
    boxes = []
    for tab in every_tab(page):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab.inner_text()
        boxes += page.evaluate("""[...document.querySelectorAll("section.shown .scroll")].map((box) => [
            box.scrollWidth > box.clientWidth + 4,
            getComputedStyle(box, "::before").content.includes("→") && getComputedStyle(box).maskImage !== "none"])""")
    assert any(longer for longer, _ in boxes)
    assert [cue for _, cue in boxes] == [longer for longer, _ in boxes]


def test_a_client_has_the_colour_of_its_name_in_every_figure(open_page):
    page = open_page("single")
    named_colours = set()
    for _ in every_tab(page):
        pairs = page.evaluate("""[...document.querySelectorAll("section.shown")].flatMap((one) => {
            const named = [...one.querySelectorAll(".legend button")].map((button) => [button.dataset.label,
                getComputedStyle(button.querySelector(".swatch")).backgroundColor]);
            const drawn = [...one.querySelectorAll("[data-figure]")].flatMap((box) => box._fullData)
                .filter((trace) => trace.meta !== undefined && trace.marker)
                .map((trace) => [trace.meta, trace.marker.color]);
            return [...named, ...drawn.map(([label, colour]) => {
                const probe = Object.assign(document.createElement("i"), { style: `color: ${colour}` });
                document.body.append(probe);
                const resolved = getComputedStyle(probe).color;
                probe.remove();
                return [label, resolved];
            })];
        })""")
        named_colours |= set(map(tuple, pairs))
    assert sorted(label for label, _ in named_colours) == ["home", "road", "shop"]


def test_rows_sort_on_click_and_by_keyboard(open_page):
    page = open_page("single")
    show(page, "Results")
    read = "[...document.querySelectorAll('#results tbody tr')].map((row) => row.cells[0].textContent)"
    button = page.locator("#results .sort", has_text="gain")
    button.click()
    assert page.locator("#results th[aria-sort]").get_attribute("aria-sort") == "descending"
    highest = page.evaluate(read)
    button.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(read)[0] == highest[-1] == "home/depth"


@pytest.mark.parametrize(
    ("tab", "figure", "least"), [("Update similarity", "cosine-encoder", 2), ("Attention", "attention", 4)]
)
def test_sliders_choose_a_round_and_a_tensor(open_page, tab, figure, least):
    page = open_page("single")
    show(page, tab)
    read = f"document.querySelector('[data-figure={figure}]').data[0].z[0][1]"
    seen = {page.evaluate(read)}
    for slider in page.locator(f"[data-moves={figure}]").all():
        slider.focus()
        for key in ("End", "Home"):
            page.keyboard.press(key)
            seen.add(page.evaluate(read))
    assert len(seen) >= least
    assert page.locator(f".slider:has([data-moves={figure}]) output").last.inner_text() == "1"


def test_the_keyboard_reaches_everything(open_page):
    page = open_page("single")
    page.get_by_role("tab", name="Predictions").focus()
    for key, tab in (("Home", "Results"), ("ArrowRight", "Training"), ("End", "Settings")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.textContent") == tab
        assert page.get_by_role("tab", name=tab).get_attribute("aria-selected") == "true"
    unreachable = page.evaluate("""[...document.querySelectorAll("button, input, summary, [role=group]")]
        .filter((one) => one.tabIndex < 0 && one.role !== "tab").length""")
    assert unreachable == 0


def test_pictures_open_large_and_close_with_escape(open_page):
    page = open_page("single")
    show(page, "Predictions")
    page.locator(".picture").first.focus()
    page.keyboard.press("Enter")
    captions = page.locator("dialog figcaption").all_inner_texts()
    page.keyboard.press("Escape")
    assert [text.split(",")[0] for text in captions] == ["input", "label", "local", "fedhca2"]
    assert not page.locator("dialog").is_visible()


def test_everything_has_a_name_for_those_who_cannot_see(open_page):
    page = open_page("single")
    nameless = page.locator("main button, main input, main img, [role=figure], [role=tabpanel]").evaluate_all("""
        all => all.filter((one) => ![one.textContent, one.alt, one.ariaLabel, one.labels?.[0]?.textContent,
            document.getElementById(one.getAttribute("aria-labelledby"))?.textContent].some((name) => name?.trim()))
            .map((one) => one.outerHTML)""")
    assert nameless == []
    assert page.locator("header, nav, main, footer").count() == 4


@pytest.mark.parametrize("width", [1400, 390])
def test_a_hostile_name_is_only_a_name(open_page, hostile_name, width):
    page = open_page("hostile", width)
    assert hostile_name in page.locator("#results tbody").first.inner_text()
    show(page, "Update similarity")
    assert hostile_name in page.locator("#update-similarity .ytick text").all_text_contents()
    show(page, "Training")
    page.locator("#training [data-label]", has_text="onerror").click()
    assert "hurt" not in page.title()
    assert page.locator("img[src=x]").count() == 0


def test_a_thousand_clients_fit_on_a_page_that_opens_quickly(browser, pages):
    assert pages["crowd"].stat().st_size < 15e6
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # of the processor: the machine may be busy
    page.goto(pages["crowd"].as_uri())
    wait_until_drawn(page)
    taken = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    assert 0.1 < taken["TaskDuration"] < 3
    page.get_by_role("searchbox").fill("site-0777")
    assert page.locator("#results article:has(input) tbody tr:visible").count() == 1
    assert page.locator(".search output").inner_text() == "1 of 1333"
    page.close()


def test_names_of_colours_stay_in_sight_below_the_tabs(open_page):
    page = open_page("single")
    show(page, "Training")
    page.evaluate("scrollTo(0, 500)")
    legend, header = (page.locator(one).bounding_box() for one in ("#training .legend", "header"))
    page.evaluate("scrollTo(0, 0)")
    assert legend["y"] == pytest.approx(header["height"], abs=2)


def test_an_address_opens_its_tab_at_the_top_and_the_back_button_the_last_one(open_page, pages):
    page = open_page("single")
    shown = page.locator("section:visible")  # one alone
    page.goto("about:blank")
    page.goto(pages["single"].as_uri() + "#update-similarity")
    wait_until_drawn(page)
    assert page.locator("#update-similarity").is_visible()
    assert page.evaluate("scrollY") == 0
    for name in ("Training", "Cost"):
        show(page, name)
    page.go_back()
    assert shown.get_attribute("id") == "training"
    page.evaluate("location.hash = '#update-similarity'")
    page.wait_for_function("document.querySelector('section.shown').id === 'update-similarity'")
    page.evaluate("location.hash = '#main'")  # the content, which is no tab
    assert shown.get_attribute("id") == "update-similarity"


@pytest.mark.parametrize("name", ["single", "several"])
def test_no_number_or_title_of_a_figure_is_cut_off_on_a_phone(open_page, name):
    page, seen = open_page(name, 390), []
    for _ in every_tab(page):
        seen += page.evaluate("""[...document.querySelectorAll("section.shown [data-figure]")].flatMap((box) => {
            const whole = box.getBoundingClientRect();
            return [...box.querySelectorAll(".bartext, .xtitle")].map((one) => [one.getBoundingClientRect(), one])
                .map(([at, one]) => [Math.min(at.left - whole.left, whole.right - at.right), one.textContent]);
        })""")
    assert len(seen) > 5
    assert [text for room, text in seen if room < -1] == []


def test_ranks_are_drawn_on_the_paper_of_the_theme(open_page):
    page = open_page("several")
    show(page, "Results")
    page.emulate_media(color_scheme="dark")
    page.evaluate("""document.querySelector("#results .blocks").insertAdjacentHTML("beforeend",
        '<svg role="img" fill="#222"><rect fill="#fff"/><text>1</text></svg>')""")
    looks = page.evaluate("""[getComputedStyle(document.body).backgroundColor, ...["rect", "text"].map((one) =>
        getComputedStyle(document.querySelector(`#results svg[role=img] ${one}`)).fill)]""")
    page.emulate_media(color_scheme="light")
    assert looks[0] == looks[1] != looks[2]
