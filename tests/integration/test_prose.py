"""Pages, errors, help and docstrings are written in short sentences, and all pages together are short."""

from pathlib import Path

import pytest

from tests.support.prose import pages, read_code, read_prose, sentences

LONGEST_MEAN, LARGEST_SHARE = 15, 0.05
MOST_WORDS, MOST_WORDS_OF_A_PAGE = 30_000, 1_200
# One looks things up there and does not read on.
REFERENCE = {Path("docs/protocol.md")}
# A proof is as long as it has to be.
PROOF = Path("docs/design/accounting.md")


@pytest.mark.parametrize("page", pages(), ids=str)
def test_sentences_are_short(page):
    _check(page, read_prose(page))


@pytest.mark.long
def test_code_speaks_in_short_sentences():
    for kind, prose in read_code().items():
        assert prose.words > 5_000, f"these are not all {kind}"
        _check(kind, prose)


def _check(what, prose):
    short = prose.mean <= LONGEST_MEAN and prose.long_share <= LARGEST_SHARE
    assert short, f"{what}: {prose.mean:.1f} words a sentence, {prose.long_share:.1%} of more than 30"


def test_pages_are_short():
    words = {page: read_prose(page).words for page in pages() if page != PROOF}
    assert sum(words.values()) <= MOST_WORDS, "say each thing once, and list in tables"
    assert not [page for page in words.keys() - REFERENCE if words[page] > MOST_WORDS_OF_A_PAGE]


def test_lists_and_paragraphs_are_cut_into_sentences_and_code_is_left_out():
    markdown = "# A head\n\nOne. `Four words of code` five!\n\n- six\n- seven, eight? Nine e.g. ten\n\n```sh\nno\n```\n"
    assert sentences(markdown) == ["One.", "Code five!", "six", "seven, eight?", "Nine eg ten"]
