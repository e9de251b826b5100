"""Files and modules that the documents name are there, and their links lead somewhere."""

import functools
import os
import re
from pathlib import Path

import pytest

import fedlm

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in page.parts),
]
OF_A_READER = {"LINES.py", "my_models.py"}


def definition(module: Path, name: str) -> bool:
    found = module.with_suffix(".py")
    return found.is_file() and bool(re.search(rf"^(class |def )?{name}\b", found.read_text("utf-8"), re.MULTILINE))


@functools.cache
def our_paths():
    """Folders and files, each with a slash before it, without environments and what was built."""
    found = []
    for folder, inner, files in os.walk(ROOT):
        inner[:] = [one for one in inner if one[0] != "." and one != "node_modules"]
        found += [f"/{(Path(folder) / one).relative_to(ROOT).as_posix()}" for one in (*inner, *files)]
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(document):
    text = document.read_text(encoding="utf-8")
    files = {*re.findall(r"[\w/]+\.py\b", text)} - OF_A_READER
    files |= {*re.findall(r"`((?:models|fl_core|clients|simulations|fedlm|tests|benchmarks)/[\w/]+)/?`", text)}
    missing = {name for name in files if not any(path.endswith(f"/{name.strip('/')}") for path in our_paths())}
    for name in re.findall(r"\bfedlm\.[a-z](?:\.?\w)+", text):
        *parts, last = name.split(".")
        if parts == ["fedlm"] and last in fedlm.__all__:
            continue
        place = ROOT.joinpath(*parts)
        if not (place / last).exists() and not (place / f"{last}.py").exists() and not definition(place, last):
            outer = place.parent
            if not definition(outer, parts[-1]):
                missing.add(name)
    assert not missing


def anchors(document: Path) -> set[str]:
    """The names that a code host, and the site, give to a document's headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_what_is_there(document):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text("utf-8")):
        if "://" in link:
            continue
        address, _, fragment = link.partition("#")
        target = (document.parent / address).resolve() if address else document
        if not target.is_file() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert not broken
