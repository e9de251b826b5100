"""A file in another encoding than UTF-8 is told by its name, whoever reads it."""

import codecs

import pytest

from fedlm.commands.data import COMMAND
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.text_encodings import refuse_other_encodings, utf8_text
from fedlm.simulations.data.sources.interactions import Interactions
from fedlm.simulations.data.sources.text_files import TextFiles
from fedlm.simulations.data.vocabulary.given_vocabulary import given_tokenizer
from fedlm.simulations.data.vocabulary.item_level import read_catalogue
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings
from fedlm.simulations.evaluation.recommendation.recommending import read_histories
from fedlm.simulations.generation.texts import read_prompts
from tests.simulations.data.sources.source_reading import read

TEXT = '{"user": "a", "text": "The café."}\n'


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_the_encoding_is_named(tmp_path, encoding):
    named = encoding[:6].upper()
    with pytest.raises(DataError, match=rf"a\.txt: is in {named}, expected UTF-8\. .*iconv -f {named} -t UTF-8"):
        utf8_text(tmp_path / "a.txt", TEXT.encode(encoding))


@pytest.mark.parametrize(
    "content", [b"", b"a", b"\0", b"ab\0", TEXT.encode(), codecs.BOM_UTF8 + TEXT.encode(), b"\0\0ab"]
)
def test_all_else_is_taken_for_utf8(tmp_path, content):
    refuse_other_encodings(tmp_path, content)
    assert utf8_text(tmp_path, content) == content.removeprefix(codecs.BOM_UTF8).decode()


@pytest.mark.parametrize(
    "take",
    [
        lambda path: read(Interactions((path,), format="pairs")),
        lambda path: read(TextFiles((path,), documents="lines")),
        lambda path: given_tokenizer(TokenizerSettings(vocabulary=path)),
        read_prompts,
        read_catalogue,
        read_histories,
    ],
)
def test_readers_of_text_name_the_encoding(tmp_path, take):
    (tmp_path / "file.txt").write_bytes("one two\nthree four\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"file\.txt: is in UTF-16, expected UTF-8"):
        take(tmp_path / "file.txt")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_the_command_names_the_encoding_of_a_table(tmp_path, kind):
    text = TEXT if kind == "jsonl" else "user,text\na,The café.\n"
    (tmp_path / "file").write_bytes(text.encode("utf-32"))
    with pytest.raises(DataError, match="file: is in UTF-32, expected UTF-8"):
        COMMAND.main(["import", kind, str(tmp_path / "file"), "--out", str(tmp_path / "store"), "--workers", "1"])


def test_half_a_character_is_named_with_its_line(tmp_path, capsys):
    rows = [f'{{"user": "u{n}", "text": "The cat sat."}}\n' for n in range(20)]
    rows.insert(7, '{"user": "u3", "text": "half \\ud83d of it"}\n')
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    COMMAND.main(["import", "jsonl", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "store"), "--workers", "1"])
    said = capsys.readouterr().out
    assert f"left out: text that is not Unicode, 1 (the first: {tmp_path / 'rows.jsonl'}, line 8)" in said
    assert "None" not in said
