"""The site of the documents is built without a warning, leads wherever it says, and has every name and command."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from lxml import html

import fedlm
from fedlm.command_line.command_tree import find_commands
from fedlm.fl_core.composed_settings import value_types

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path):
    """The folder of the site, as `make docs` builds it."""
    makefile = (ROOT / "Makefile").read_text()
    (command,) = [line for line in makefile.splitlines() if " -m sphinx " in line]
    words = command.replace("$(BIN)/python", sys.executable).replace("$(SITE)", str(tmp_path)).split()
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert built.returncode == 0, built.stderr
    return tmp_path


@pytest.mark.long
def test_the_site(site):
    pages = {path: html.parse(str(path)).getroot() for path in site.rglob("*.html")}
    places = {path: {"", *page.xpath("//@id")} for path, page in pages.items()}
    assert not broken_links(pages, places)
    assert not {script for page in pages.values() for script in page.xpath("//script/@src") if "://" in script}

    documents = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.ipynb")]
    sources = {site / path.relative_to(ROOT).with_suffix(".html") for path in documents}
    assert sources <= in_contents(pages, site / "docs" / "index.html")

    generated = site / "docs" / "reference" / "generated"
    names = {place for page in (generated / "python").glob("*.html") for place in places[page]}
    assert {f"fedlm.{name}" for name in fedlm.__all__} <= names
    explained = {place for page in (generated / "commands").glob("*.html") for place in places[page]}
    for prog, command in find_commands().items():
        for option in value_types(command):
            forms = (option, f"no_{option}", f"arg_{option.upper()}")
            assert explained & {f"cmdoption-{prog}-{form}".replace(" ", "-").replace("_", "-") for form in forms}, (
                f"{prog} --{option} is on no page"
            )


def broken_links(pages, places):
    broken = []
    for path, page in pages.items():
        for link in page.xpath("//a/@href | //img/@src"):
            if "://" in link or link.startswith(("mailto:", "data:")):
                continue
            address, fragment = urldefrag(link)
            target = (path.parent / unquote(address)).resolve() if address else path
            if not target.exists() or (target in places and unquote(fragment) not in places[target]):
                broken.append(f"{path.name}: {link}")
    return broken


def in_contents(pages, front):
    """The pages that the contents at the side lead to, from one page to the next."""
    reached, waiting = {front}, [front]
    while waiting:
        path = waiting.pop()
        for link in pages[path].xpath("//*[contains(@class, 'sidebar-tree')]//a/@href"):
            target = (path.parent / unquote(urldefrag(link)[0])).resolve()
            if target in pages and target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached
