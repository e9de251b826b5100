import pytest

from fedlm.fedlm_client.text import text_examples
from fedlm.simulations.data.sources.english import sentences, split_sentences


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (
            "Return the first item. It may be None!\nIs the list\n   empty? Then raise an error.",
            ["Return the first item.", "It may be None!", "Is the list empty?", "Then raise an error."],
        ),
        ("The HTTP\nServer  is  Here", ["The HTTP Server is Here"]),
        (
            "There are lists, tuples, etc. The rest of it stays.",
            ["There are lists, tuples, etc.", "The rest of it stays."],
        ),
        ('He said "so be it." Then we left it.', ['He said "so be it."', "Then we left it."]),
        ("We left (in the rain.) It is so.", ["We left (in the rain.)", "It is so."]),
    ],
)
def test_splits_at_sentence_ends_and_joins_lines(block, found):
    assert sentences(block) == found
    for sentence in (
        "Use a container, e.g. List or a tuple, here.",
        "This is slow, i.e. Python code runs.",
        "See the paper by J. R. Smith et al. Section two has it.",
        "It compares a vs. B in the end.",
        "Version 3.11 of os.path has this method.",
    ):
        assert split_sentences(sentence) == [sentence]


def test_each_letter_is_looked_at_once_for_an_abbreviation(monkeypatch):
    looked_at, ends_in_one = [], text_examples._is_abbreviation
    monkeypatch.setattr(text_examples, "_is_abbreviation", lambda text: looked_at.append(text) or ends_in_one(text))
    names = "Mr. A. Dr. B. " * 100
    expected = [f"It is by {names}Ann.", "It is long.", "Read it."]
    assert split_sentences(" ".join(expected)) == expected
    assert len(looked_at) == 402
    assert sum(map(len, looked_at)) < len(names) + 50


@pytest.mark.parametrize(
    "noise",
    [
        ">>> print the value of x\nthe value of x is printed\nand here is more output",
        "def function(first, second, third):",
        "from some.module import several, good, names",
        "name         meaning of the name",
        "| a cell of text | and another cell |",
        "+-----------+ box +---------+",
        "------------------------------",
        "some_function(with, three, arguments)",
        "return the_function(of some thing)",
        "-*- coding of this file -*-",
        "LATIN CAPITAL LETTER C WITH CEDILLA",
        "0x1f 0x2f 0x3f the 12 34 is of",
        "two words",
        "word " * 101,
    ],
)
def test_noise_is_dropped(noise):
    assert sentences(noise) == []


def test_prose_around_noise_is_kept():
    block = """Title of section
================

Open the file for reading.

    >>> open("the file for reading")
    this is output of it

It is closed afterwards::

    close the file now please
    and do so twice

The end of the story.

- the first item is here
- the second item
  goes over two lines
:param name: the name of the file
"""
    assert sentences(block) == [
        "Open the file for reading.",
        "It is closed afterwards:",
        "The end of the story.",
        "the first item is here",
        "the second item goes over two lines",
        "the name of the file",
    ]
