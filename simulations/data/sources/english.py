"""English sentences out of documentation blocks: what is prose is kept, code, tables and decoration are not."""

import re
from collections.abc import Iterator

from fedlm.fedlm_client.text.text_examples import split_sentences

MINIMUM_WORDS = 3
MAXIMUM_WORDS = 100  # what is longer is a list of names, not a sentence
MINIMUM_ALPHABETIC_SHARE = 0.7

_DECORATION = re.compile(r"[^A-Za-z0-9]*")
_BULLET = re.compile(r"\s*(?:[-*+o•]|\(?(?:\d{1,2}|[a-zA-Z])[.)])\s+(?=\S)")
_FIELD = re.compile(r"\s*[:@](?:param|type|arg|raises?|returns?|rtype|keyword)\b[^:\s]*+\s*[^:\s]*:?\s+")
_DIRECTIVE = re.compile(r"\s*(?:\.\. |!|-\*-|type: ignore|noqa|pragma:|pylint:|mypy:|fmt:)")
_COLUMNS = re.compile(r"\S(?: {3,}| *\t *)\S|\|.*\||\+--|--\+")
_STATEMENT = re.compile(
    r"\s*(?:"
    r"(?:def|class)\s+\w+\s*[(:].*"
    r"|(?:if|elif|for|while|with|except)\b.*:"
    r"|(?:else|try|finally):.*"
    r"|(?:from\s+[\w.]+\s+)?import\s+[\w.,* ]+(?:\s+as\s+\w+)?"
    r"|(?:return|raise|yield|assert|del|print)\b.*[()\[\]=]\S*"
    r"|[\w.\[\]'\", ()*]+\s*[-+*/%&|^]?=\s*\S.*"
    r"|@\w[\w.]*(?:\(.*\))?"
    r"|[\w.]+\s*\(.*\)\s*[:;]?(?:\s*->.*)?"
    r"|.*(?:[{}\\]|[)\]'\"];)"
    r"|[$%]\s.*"
    r")\s*"
)
_WORD = re.compile(r"[\"'`(\[*_<]*[A-Za-z]+(?:['\u2019/-][A-Za-z]+)*[\"'`)\]*_>]*[.,;:!?]*[\"'`)\]]*")
_SPACES = re.compile(r"\s+")


def sentences(block: str) -> list[str]:
    """Return the English sentences of one documentation block, each on one line with single spaces.

    The block is the text of a docstring or of a run of comment lines, newlines and indentation kept, comment signs
    removed.
    """
    return [s for paragraph in paragraphs(block) for s in split_sentences(paragraph) if is_english(s)]


def paragraphs(block: str) -> Iterator[str]:
    """Yield the paragraphs of prose in a block, each joined to one line, without examples and tables."""
    lines: list[str] = []
    in_doctest = False
    literal_indent: int | None = None  # a paragraph ending in "::" announces a deeper-indented literal

    for line in [*block.expandtabs(8).splitlines(), ""]:
        text = line.strip()
        if literal_indent is not None and text and _indent(line) <= literal_indent:
            literal_indent = None
        in_doctest = bool(text) and (in_doctest or text.startswith((">>>", "... ")))
        literal = literal_indent is not None and not lines
        if in_doctest or literal or not _is_prose_line(line):
            underlined = len(text) >= 3 and _DECORATION.fullmatch(text) and len(lines) == 1
            if lines and not underlined:
                yield _join(lines)
            if lines and lines[-1].endswith("::"):
                literal_indent = _indent(lines[-1])
            lines = []
            continue
        marker = _BULLET.match(line) or _FIELD.match(line)
        if marker:
            if lines:
                yield _join(lines)
            lines = [" " * _indent(line) + line[marker.end() :].strip()]
        else:
            lines.append(line.rstrip())


def is_english(sentence: str) -> bool:
    """Whether a sentence has at least three alphabetic words, little else, and is not all in capitals."""
    tokens = sentence.split()
    words = [token for token in tokens if _WORD.fullmatch(token)]
    if not MINIMUM_WORDS <= len(tokens) <= MAXIMUM_WORDS or len(words) < MINIMUM_WORDS:
        return False
    capitals = sum(word.isupper() for word in words)
    return len(words) >= MINIMUM_ALPHABETIC_SHARE * len(tokens) and capitals <= len(words) / 2


def _is_prose_line(line: str) -> bool:
    text = line.strip()
    if not text or _DECORATION.fullmatch(text) or _DIRECTIVE.match(text):
        return False
    return not (_COLUMNS.search(text) or _STATEMENT.fullmatch(text))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(lines: list[str]) -> str:
    text = _SPACES.sub(" ", " ".join(line.strip() for line in lines))
    return text[:-1] if text.endswith("::") else text
