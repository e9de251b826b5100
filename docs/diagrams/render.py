"""Draw each diagram of this folder with Graphviz: `python docs/diagrams/render.py` writes NAME.svg beside NAME.dot.

The pictures are committed, so that nobody needs Graphviz to read or to build the pages. Each has the fingerprint of
what it was drawn from, which a test compares with the sources.
"""

import hashlib
import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
STYLE = FOLDER / "style.css"


def fingerprint(source: Path) -> str:
    """What tells a diagram that was drawn from another text, or in another style."""
    return hashlib.sha256(source.read_bytes() + STYLE.read_bytes()).hexdigest()[:16]


def render(source: Path) -> str:
    """The picture of a diagram, with the colours of light and dark pages."""
    drawn = subprocess.run(["dot", "-Tsvg", source], capture_output=True, text=True, check=True).stdout
    svg = drawn[drawn.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\n?|<title>.*?</title>\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:fill|stroke|font-family)="[^"]*"', "", svg)
    head, _, body = svg.partition(">\n")
    return f"{head}>\n<!-- {fingerprint(source)} -->\n<style>\n{STYLE.read_text()}</style>\n{body}"


if __name__ == "__main__":
    for found in sorted(FOLDER.glob("*.dot")):
        found.with_suffix(".svg").write_text(render(found))
