"""How long the sentences of a page are: `python -m tests.support.prose` prints a table of all pages."""

import itertools
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
# Generated from results, or a list of what changed and not running text.
NOT_PROSE = ("CHANGELOG.md", "benchmarks/*/results/*.md", "docs/reference/commands.md", "docs/reference/python.md")
LONG = 30
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`\[])")
_NOT_AN_END = re.compile(r"\b(e\.g|i\.e|et al|vs|cf|Fig|Eq|Sec|approx)\.\s", re.IGNORECASE)
_WORD = re.compile(r"[\w'/.,:+=<>%-]*\w[\w'/.,:+=<>%-]*")


@dataclass(frozen=True)
class Prose:
    """The running text of a page, as the lengths of its sentences in words."""

    lengths: tuple[int, ...]

    @property
    def words(self) -> int:
        """All words of the page's running text."""
        return sum(self.lengths)

    @property
    def mean(self) -> float:
        """Words a sentence."""
        return self.words / max(1, len(self.lengths))

    @property
    def long_share(self) -> float:
        """The share of sentences of more than 30 words."""
        return sum(length > LONG for length in self.lengths) / max(1, len(self.lengths))


def pages() -> list[Path]:
    """Every page of the repository that people write, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.ipynb"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    found = [Path(name) for name in listed.splitlines() if (ROOT / name).exists()]
    return [page for page in found if not any(page.match(pattern) for pattern in NOT_PROSE)]


def sentences(markdown: str) -> list[str]:
    """The sentences of paragraphs and list items; headings, tables and code are none."""
    found = []
    for text in _running_texts(_MARKDOWN.parse(re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.DOTALL))):
        whole = _NOT_AN_END.sub(lambda match: match[0].replace(".", ""), text)
        found += [part for part in _SENTENCE_END.split(whole) if _WORD.search(part)]
    return found


def read_prose(page: Path) -> Prose:
    """Measure a page of Markdown, or the Markdown cells of a notebook."""
    content = (ROOT / page).read_text()
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(content)["cells"] if cell["cell_type"] == "markdown"]
        content = "\n\n".join("".join(cell["source"]) for cell in cells)
    return Prose(tuple(len(_WORD.findall(sentence)) for sentence in sentences(content)))


def _running_texts(tokens: list[Token]) -> list[str]:
    return [
        _plain(token.children or [])
        for before, token in itertools.pairwise(tokens)
        if before.type == "paragraph_open" and token.type == "inline"
    ]


def _plain(children: list[Token]) -> str:
    # What stands in code quotes is one word to who reads it.
    texts = {"text": lambda token: token.content, "code_inline": lambda _: "Code", "softbreak": lambda _: " "}
    return "".join(texts.get(child.type, lambda _: "")(child) for child in children)


def main() -> None:
    """Print words, words a sentence and the share of long sentences of each page, and of all."""
    measured = {page: read_prose(page) for page in pages()}
    print(f"{'page':56} words  a sentence  above {LONG}")
    for page, prose in [*measured.items(), (Path("all"), Prose(sum((p.lengths for p in measured.values()), ())))]:
        print(f"{page!s:56} {prose.words:5} {prose.mean:11.1f} {prose.long_share:8.1%}")


if __name__ == "__main__":
    main()
