"""Prose out of HTML and of comments in Markdown: paragraphs of words, without code blocks and displayed formulas."""

import html
import re

from fedlm.fl_core.extras import extra

with extra("data"):
    from lxml import etree

_BLOCKS = frozenset(
    "address article aside blockquote br caption center dd details div dl dt fieldset figcaption figure footer form "
    "h1 h2 h3 h4 h5 h6 header hr legend li main nav ol option p section summary table tbody td tfoot th thead tr "
    "ul".split()
)
"""Elements that begin and end a paragraph."""
_OMITTED = frozenset(("pre", "script", "style", "template", "textarea"))
"""Elements whose text is not prose; they too end a paragraph."""

_GUARD = "\0"
"""Put into code, where the marks of formulas mean something else; neither HTML nor XML has this character."""
_FORMULA_BEGINNINGS = ("$$", "\\[", "\\begin{")
_FORMULA_MARK = re.compile(r"\$\$|(?<!\\)\\[\[\]]|\\(?:begin|end)\{[^{}]*\}")
# One pair of parentheses belongs to an address, as in .../Ring_(mathematics); what ends a sentence does not.
_ADDRESS = re.compile(r"(?:https?://|ftp://|\bwww\.)(?:\([^\s()<>]*\)|[^\s()<>\"])+(?<![.,;:!?'\]}*_])", re.IGNORECASE)
_MARKDOWN_CODE = re.compile(r"`+([^`]*)`+")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]*)\]\(\s*(?:\([^\s()]*\)|[^\s()])+(?:\s+\"[^\"]*\")?\s*\)")


def html_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of an HTML fragment, however broken it is, with single spaces.

    Blocks of code and displayed formulas are left out, words of inline code and inline formulas stay, and addresses are
    replaced by `<URL>`.
    """
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, target=_ParagraphCollector())
    try:
        collected: list[str] = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except etree.LxmlError:  # of a document that libxml2 gives up on
        return []
    return _tidied(collected)


def comment_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a comment, which is plain text with some Markdown and perhaps HTML's character
    references.

    They are tidied as those of `html_paragraphs`. Of a link its words stay.
    """
    text = _MARKDOWN_LINK.sub(r"\1", html.unescape(text))
    text = _MARKDOWN_CODE.sub(lambda code: _guarded(code[1]), text).replace("`", "")
    return _tidied(text.split("\n\n"))


def without_displayed_formulas(text: str) -> str:
    r"""Return a text with a space for each `$$...$$`, `\[...\]` and `\begin{...}...\end{...}`, which may be nested.

    What begins a formula that does not end is kept.
    """
    if not any(beginning in text for beginning in _FORMULA_BEGINNINGS):
        return text
    kept: list[str] = []
    after, begin, closing, depth = 0, 0, "", 0
    for mark in _FORMULA_MARK.finditer(text):
        sign = mark.group()[:4]
        if not closing:
            closing = {"$$": "$$", "\\[": "\\]", "\\beg": "\\end"}.get(sign, "")
            begin, depth = mark.start(), 1
            continue
        depth += (sign == "\\beg" and closing == "\\end") - (sign == closing)
        if depth == 0:
            kept += text[after:begin], " "
            after, closing = mark.end(), ""
    return "".join((*kept, text[after:]))


def _tidied(paragraphs: list[str]) -> list[str]:
    tidied = []
    for paragraph in paragraphs:
        words = without_displayed_formulas(paragraph).replace(_GUARD, "")
        if "://" in words or "www." in words:
            words = _ADDRESS.sub("<URL>", words)
        if words := " ".join(words.split()):
            tidied.append(words)
    return tidied


def _guarded(code: str) -> str:
    return code.replace("$", "$" + _GUARD).replace("\\", "\\" + _GUARD)


class _ParagraphCollector:
    """Receives what lxml parses, and collects the texts of paragraphs."""

    def __init__(self) -> None:
        self._paragraphs: list[str] = []
        self._pieces: list[str] = []
        self._omitted = 0
        self._code = 0

    def start(self, tag: str, attributes: object) -> None:
        if tag in _BLOCKS:
            self._end_paragraph()
        elif tag in _OMITTED:
            self._end_paragraph()
            self._omitted += 1
        elif tag == "code":
            self._code += 1

    def end(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_paragraph()
        elif tag in _OMITTED:
            self._omitted -= 1
        elif tag == "code":
            self._code -= 1

    def data(self, text: str) -> None:
        if not self._omitted:
            self._pieces.append(_guarded(text) if self._code else text)

    def close(self) -> list[str]:
        self._end_paragraph()
        return self._paragraphs

    def _end_paragraph(self) -> None:
        if self._pieces:
            self._paragraphs.append("".join(self._pieces))
            self._pieces = []
