"""How long sentences are, of pages and of the code: `python -m tests.support.prose` prints a table of both."""

import ast
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
# Generated from results, or a list of what changed and not running text.
NOT_PROSE = ("CHANGELOG.md", "benchmarks/*/results/*.md", "docs/reference/commands.md", "docs/reference/python.md")
PRODUCT = ("models", "fl_core", "clients", "simulations", "fedlm")
LONG = 30
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`\[])")
_NOT_AN_END = re.compile(r"\b(e\.g|i\.e|et al|vs|cf|Fig|Eq|Sec|approx)\.\s", re.IGNORECASE)
_SECTION = re.compile(r"\n\s*(Args|Attributes|Returns|Yields|Raises|Example):\n")
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
    return [page for page in _listed("*.md", "*.ipynb") if not any(page.match(pattern) for pattern in NOT_PROSE)]


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


def read_code() -> dict[str, Prose]:
    """Measure what the product's code says: its errors, the help of its options, and what public names are for."""
    files = [file for file in _listed("*.py") if file.parts[0] in PRODUCT]
    found: dict[str, list[int]] = {"errors": [], "help": [], "docstrings": []}
    for kind, text in itertools.chain.from_iterable(_texts(ast.parse((ROOT / file).read_text())) for file in files):
        found[kind] += [len(_WORD.findall(sentence)) for sentence in sentences(re.sub(r"\n[ \t]+", "\n", text))]
    return {kind: Prose(tuple(lengths)) for kind, lengths in found.items()}


def _texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from (("errors", text) for text in map(_literal, node.exc.args) if text)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not getattr(node, "name", "").startswith("_"):
                yield "docstrings", _SECTION.split(ast.get_docstring(node) or "")[0]
            if isinstance(node, ast.ClassDef):
                behind = [_literal(one.value) for one in node.body[1:] if isinstance(one, ast.Expr)]
                yield from (("help", text) for text in behind if text)


def _literal(node: ast.expr) -> str:
    """A text in the source, with a word for each value that is put in; empty where it is none."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    values = [part.value if isinstance(part, ast.Constant) else "value" for part in parts]
    return "".join(values) if all(isinstance(one, str) for one in values) else ""


def _listed(*patterns: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in names.splitlines() if (ROOT / name).exists()]


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
    """Print words, words a sentence and the share of long sentences of each page, of all, and of the code."""
    measured = {page: read_prose(page) for page in pages()}
    print(f"{'page':56} words  a sentence  above {LONG}")
    of_all = Prose(sum((prose.lengths for prose in measured.values()), ()))
    for page, prose in [*measured.items(), ("all", of_all), *read_code().items()]:
        print(f"{page!s:56} {prose.words:5} {prose.mean:11.1f} {prose.long_share:8.1%}")


if __name__ == "__main__":
    main()
