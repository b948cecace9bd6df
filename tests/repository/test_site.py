"""The site: every public name and every page is in it; the built one, whose folder is in SITE, has no dead link, asks nothing of
other hosts, and searches from the disk."""

import os
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import construct
import verify
from commands import ROOT

DOCS = ROOT / "docs"
REFERENCE = sorted(DOCS.glob("api/*.rst"))
SITE = Path(os.environ.get("SITE", ROOT / "build/html"))
built = pytest.mark.skipif("SITE" not in os.environ, reason="SITE names no folder of a built site")

PUBLIC = {f"{package.__name__}.{name}" for package in (construct, verify) for name in package.__all__}


def listed(entries: list[dict]) -> list[str]:
    return [file for entry in entries for file in (entry["file"], *listed(entry.get("entries", [])))]


def test_every_public_name_is_described_once_and_listed_once():
    described = Counter(re.findall(r"^\.\. auto\w+:: ([\w.]+)", "".join(map(Path.read_text, REFERENCE)), re.M))
    assert {name: described[name] for name in PUBLIC} == dict.fromkeys(PUBLIC, 1)
    blocks = (DOCS / "api/index.rst").read_text().split(".. currentmodule:: ")[1:]
    names = [f"{block.split()[0]}.{name}" for block in blocks for name in re.findall(r"^   (\w+)$", block, re.M)]
    assert sorted(name for name in names if not name.startswith("verify.strategies.")) == sorted(PUBLIC)


def test_the_contents_list_every_page_once():
    contents = yaml.safe_load((DOCS / "site/contents.yml").read_text())
    patterns = ("*.md", "docs/*.md", "docs/api/*.rst", "docs/teaching/one_*.py", "examples/*.md")
    pages = [page for pattern in patterns for page in ROOT.glob(pattern)]
    files = [contents["root"], *(file for part in contents["subtrees"] for file in listed(part["entries"]))]
    assert sorted(files) == sorted(page.relative_to(ROOT).with_suffix("").as_posix() for page in pages)


class Page(HTMLParser):
    """The ids of a page, where its links lead, and what it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = {"", "top"}
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value is not None:
                self.ids.add(value)
            elif name in ("href", "src", "srcset", "data", "poster", "action") and value is not None:
                (self.links if tag in ("a", "form") else self.loaded).add(value)


@built
def test_every_link_of_the_site_resolves_and_nothing_is_loaded_from_outside():
    pages = {path: Page(path) for path in SITE.rglob("*.html")}
    assert len(pages) > 50
    for path, page in pages.items():
        for address in page.links | page.loaded:
            parts = urlsplit(address)
            if parts.scheme in ("data", "https") and (parts.scheme == "data" or address in page.links):
                continue
            assert not parts.scheme + parts.netloc, f"{path} loads {address}"
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path} leads to {address}"
            assert target not in pages or unquote(parts.fragment) in pages[target].ids, f"{path} leads to {address}"
    for sheet in SITE.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@built
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_formulas_search_and_demo_run_from_the_disk():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as run:
        page = run.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"]).new_page()
        requests, errors = [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(error))
        for address, shown in {
            "index.html": "h1:has-text('constructively')",
            "docs/teaching/one_head.html": "mjx-container svg",
            "search.html?q=leakage": "ul.search a[href*='certifying.html#verify.Certificate.leakage']",
            "demo.html": "input[type=range]",
        }.items():
            page.goto(f"{SITE.resolve().as_uri()}/{address}")
            page.wait_for_selector(shown)
    assert {str(error) for error in errors} <= {"Failed to fetch"}  # the lines around what was searched for
    assert not [url for url in requests if not url.startswith(("file:", "data:"))]
