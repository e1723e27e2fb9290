"""Debian's Chromium, headless, as root, and without network requests."""

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]


def launch(playwright):
    """A browser that playwright drives."""
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None:
        raise FileNotFoundError("expected chromium (Debian: apt-get install chromium), got none")
    return playwright.chromium.launch(executable_path=executable, args=QUIET)


# A figure is drawn when each of its traces has left marks and it has room.
UNDRAWN = """[...document.querySelectorAll("section")].filter((one) => getComputedStyle(one).display !== "none")
    .flatMap((one) => [...one.querySelectorAll("[data-figure]")])
    .filter((box) => {
        const marks = box.querySelectorAll(".cartesianlayer .trace, .heatmaplayer .hm").length;
        return !box.data || marks < box.data.length || box.getBoundingClientRect().width < 200;
    }).map((box) => box.dataset.figure)"""


def wait_until_drawn(page):
    page.wait_for_function(f"{UNDRAWN}.length === 0", timeout=10_000)
