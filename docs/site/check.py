"""Checks a built site: every link inside it leads to a page and a place, and nothing is loaded from elsewhere.

python docs/site/check.py build/docs/html
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
FROM_ELSEWHERE = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""")


class Page(HTMLParser):
    """The names of places in a page, its links, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.places, self.links, self.loads = set(), set(), set(FROM_ELSEWHERE.findall(text))
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        """Note what a tag has of these."""
        found = dict(attributes)
        self.places |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        if address := found.get(LOADED.get(tag, "")):
            self.loads.add(address)


def faults(folder):
    """Lines about links that lead nowhere, and about what comes from elsewhere."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        shown = path.relative_to(folder)
        for address in sorted(page.links | page.loads):
            target = urlsplit(address)
            if target.scheme or target.netloc:
                if address in page.loads and target.scheme != "data":
                    yield f"{shown}: should load nothing from elsewhere, found {address}"
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            if not file.is_file():
                yield f"{shown}: {address} should lead to a file of the site, found none"
            elif file in pages and target.fragment and unquote(target.fragment) not in pages[file].places:
                yield f"{shown}: {address} should lead to a place of its page, found none of that name"
    for path in sorted(folder.rglob("*.css")):
        for address in FROM_ELSEWHERE.findall(path.read_text("utf-8")):
            yield f"{path.relative_to(folder)}: should load nothing from elsewhere, found {address}"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1]).resolve()))
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(found)} faults in {len(list(Path(sys.argv[1]).rglob('*.html')))} pages")
    sys.exit(bool(found))
