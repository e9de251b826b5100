"""The pictures of docs/diagrams are drawn from the texts beside them, and show light and dark."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "diagrams"
fingerprint = runpy.run_path(str(FOLDER / "render.py"))["fingerprint"]


def test_every_picture_has_a_text():
    assert {path.stem for path in FOLDER.glob("*.svg")} == {path.stem for path in FOLDER.glob("*.dot")} != set()


@pytest.mark.parametrize("source", sorted(FOLDER.glob("*.dot")), ids=lambda path: path.stem)
def test_a_picture_is_drawn_from_its_text(source):
    picture = source.with_suffix(".svg").read_text()
    assert fingerprint(source) in picture, "`make diagrams` draws it anew"
    assert "prefers-color-scheme: dark" in picture
    root = ElementTree.fromstring(picture)
    assert not [element for element in root.iter() if {"fill", "stroke", "href", "src"} & element.attrib.keys()]
