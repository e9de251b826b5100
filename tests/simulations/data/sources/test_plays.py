import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.sources.plays import Plays, speeches
from tests.simulations.data.sources.source_reading import read

GUTENBERG = """The Project Gutenberg eBook of A Play

Dramatis Personæ

ANN, a baker.

ACT I

SCENE I. A street.

_Enter Ann and Ben._

ANN.
[_Aside._] Who bakes?
He _never_ does.

BEN OF THE HILL.
I do,
and well.

[_They bake._]

Now eat.

Enter Cleo.

Exeunt.

SCENE II. A bakery.

Flour everywhere.

DRAMATIS PERSONAE.
CLEO, a cat.

*** END OF THE PROJECT GUTENBERG EBOOK A PLAY ***

ANN.
This is a licence.
"""
MARKDOWN = """# A Play

### SCENE I. A street.

_Enter ANN_

**First  Baker**
Who bakes?

*Exit Ann.*

Nobody.
"""


def test_speeches_have_their_speakers_and_no_directions():
    found = [(role, " ".join(speech.split())) for role, speech in speeches(GUTENBERG)]
    hill = "BEN OF THE HILL"
    assert found == [("ANN", "Who bakes? He never does."), (hill, "I do, and well."), (hill, "Now eat.")]
    assert list(speeches(MARKDOWN)) == [("FIRST BAKER", "Who bakes?")]


def test_plays_of_one_name_in_two_folders_have_roles_of_their_own(tmp_path):
    for folder in ("early", "late"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "hill.txt").write_text("ANN.\nYes.\n", encoding="utf-8")
    texts, _ = read(Plays((tmp_path,)))
    assert [text.client_id for text in texts] == ["early/hill/ANN", "late/hill/ANN"]
    with pytest.raises(DataError, match=r"late/hill\.txt: found a second play of the name hill, .*folder above both"):
        read(Plays((tmp_path / "early", tmp_path / "late")))


def test_a_role_is_a_client_whose_last_fifth_is_for_tests(tmp_path):
    (tmp_path / "hill.txt").write_text("ANN.\n" + "bread " * 20 + "\n\nBEN.\nYes.\n", encoding="utf-8")
    texts, skipped = read(Plays((tmp_path,), characters=11))
    assert [(text.client_id, text.split, text.sentences) for text in texts] == [
        ("hill/ANN", "train", ["bread bread"] * 8),
        ("hill/ANN", "test", ["bread bread"] * 2),
        ("hill/BEN", "train", ["Yes."]),
    ]
    assert skipped.as_dict() == {}
