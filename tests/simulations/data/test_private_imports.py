"""Vocabularies that are made of the text with differential privacy, and where every vocabulary comes from."""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace

import pytest

from fedlm.commands.data import COMMAND
from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.joint_statement import state_together
from fedlm.fl_core.privacy.origins.private_words import COUNT_NORM, word_weight
from fedlm.fl_core.privacy.origins.vocabulary_origin import UNKNOWN, VocabularyOrigin
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import plan_vocabulary
from fedlm.fl_core.privacy.promise.guarantee import account, gaussian_epsilon
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger, Release
from fedlm.models.special_tokens import OOV_ID, SPECIAL_TOKENS
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.group_encoding import GroupedText, count_contributions
from fedlm.simulations.data.grouping import NUM_GROUPS, write_run
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.splits import SplitRule, split_of
from fedlm.simulations.data.store.format import read_header
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary import private_vocabulary
from fedlm.simulations.data.vocabulary.text_cutting import LONGEST_WORD
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

PRIVATE = ImportSettings(
    vocabulary_size=300, vocabulary_epsilon=8.0, vocabulary_delta=1e-6, vocabulary_words_per_client=6
)
PLAIN = ImportSettings(vocabulary_size=300)
SECRET = "xyzzyplugh"
OF_TRAIN = [name for name in map("user{}".format, range(100)) if split_of(name) == "train"]


def texts(people=80):
    """Text that many share, and a word that one client alone writes, three times."""
    shared = [ClientText(f"user{i}", ["the train was late again", "the train will wait"]) for i in range(people)]
    return [*shared, ClientText(OF_TRAIN[0], [f"my word is {SECRET}"] * 3)]


def import_made_up(out, found, settings=PRIVATE, **options):
    return import_text("made up", InMemoryText(found), out, settings, workers=1, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Data sets of `texts` whose vocabulary is private, and plain: not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    import_made_up(folder / "private", texts())
    import_made_up(folder / "plain", texts(), PLAIN)
    return folder


@pytest.fixture
def private_store(made, tmp_path):
    """A copy of the data set with a private vocabulary."""
    return shutil.copytree(made / "private", tmp_path / "store")


def change_record(store, change):
    document = json.loads((store / "store.json").read_text())
    change(document)
    (store / "store.json").write_text(json.dumps(document))


def tokens(store):
    return set(json.loads((store / "tokenizer.json").read_text())["model"]["vocab"])


def knows(store, word):
    return word in {piece.removeprefix("##") for piece in tokens(store)}


def test_a_word_of_one_client_is_in_a_plain_vocabulary_and_not_in_a_private_one(made):
    assert knows(made / "plain", SECRET)
    assert not knows(made / "private", SECRET)
    assert knows(made / "private", "train")
    store = TokenStore.open(made / "private")
    assert store.tokenizer.decode(store.tokenizer.encode_batch([SECRET])[0]) == SECRET, "it is spelled"


def test_a_character_of_one_client_is_not_in_a_private_vocabulary(tmp_path):
    found = [*texts(), ClientText(OF_TRAIN[1], ["ж ж ж ж жжжж train", "ж"] * 40)]
    import_made_up(tmp_path / "plain", found, PLAIN)
    assert knows(tmp_path / "plain", "ж")
    import_made_up(tmp_path / "private", found)
    assert not knows(tmp_path / "private", "ж")
    assert {"~", "q", "##q", "7", "##7"} <= tokens(tmp_path / "private")
    store = TokenStore.open(tmp_path / "private")
    assert store.tokenizer.encode_batch(["ж"])[0].tolist() == [OOV_ID]


def counted(folder, found, settings):
    """Count what clients of a source contribute, as an import does."""
    folder.mkdir()
    write_run(folder / "run-0.arrow", found, SkippedCounts())
    named = {text.split for text in found if text.split}
    rule = SplitRule.of_source(named, settings.resplit, settings.seed)
    grouped = GroupedText([folder / "run-0.arrow"], settings, rule, words_are_separated=False)
    return count_contributions(grouped, range(NUM_GROUPS))


def with_splits():
    """Text that names splits, one of which a single client has."""
    given = [None, "train", "train", "test"]
    shared = [ClientText(f"user{i}", [f"the word{i % 7} and word{i % 3}"] * 3, given[i % 4]) for i in range(60)]
    assert sum(text.split == "train" and split_of(text.client_id) == "heldout" for text in shared) > 1
    return [*shared, ClientText("alone", ["the last of all"], "heldout"), ClientText("user1", ["more"], "train", 3)]


@pytest.mark.parametrize(
    ("settings", "named"),
    [(PRIVATE, True), (replace(PRIVATE, resplit=True), True), (replace(PRIVATE, tokenizer_sentences=5), False)],
)
def test_one_client_moves_all_counts_by_the_norm_at_most(tmp_path, settings, named):
    found = with_splits() if named else [text._replace(split=None) for text in with_splits()]
    whole = counted(tmp_path / "whole", found, settings)
    moved = 0
    for number, client in enumerate(["alone", "user0", "user1", "user2", "user5"]):
        without = counted(tmp_path / str(number), [text for text in found if text.client_id != client], settings)
        difference = Counter(whole)
        difference.subtract(without)
        assert sum(value**2 for value in difference.values()) <= COUNT_NORM**2
        assert len([word for word, value in difference.items() if value]) <= settings.vocabulary_words_per_client
        moved += any(difference.values())
    assert moved >= 2


def test_what_a_client_adds_is_bounded_in_words_however_many_letters_and_pieces_they_have(tmp_path):
    """A word takes one of its client's places, whatever pieces it is made of, and one that is too long takes none."""
    own = ["ab", "x" * LONGEST_WORD]
    name, short = OF_TRAIN[0], [ClientText(OF_TRAIN[0], [" ".join(own)])]
    too_long = ["y" * (LONGEST_WORD + 1), "z" * 100_000]
    longer = [ClientText(name, [" ".join([*own, *too_long] * 9)])]
    expected = dict.fromkeys(own, word_weight(2))
    assert counted(tmp_path / "short", short, PRIVATE) == expected
    assert counted(tmp_path / "longer", longer, PRIVATE) == expected
    assert sum(value**2 for value in expected.values()) <= COUNT_NORM**2


def test_pieces_are_made_of_words_that_the_noise_has_left_and_of_nothing_else(tmp_path, monkeypatch):
    seen = []
    train = Tokenizer.train

    def watched(words, *others):
        seen.append(dict(words))
        return train(words, *others)

    monkeypatch.setattr(Tokenizer, "train", watched)
    monkeypatch.setattr(private_vocabulary, "noisy_words", lambda counts, plan: Counter({"train": 90, "late": 60}))
    import_made_up(tmp_path / "private", [*texts(), ClientText(OF_TRAIN[1], ["secretword" * 9, SECRET * 5])])
    assert seen == [{"train": 90, "late": 60}]
    pieces = {piece.removeprefix("##") for piece in tokens(tmp_path / "private")} - set(SPECIAL_TOKENS)
    assert all(len(piece) == 1 or piece in "train" or piece in "late" for piece in pieces)
    assert {"train", "late"} <= pieces


def test_held_out_people_are_not_counted(tmp_path):
    found = [ClientText(f"user{i}", [f"only{i} wrote this"]) for i in range(40)]
    whole = counted(tmp_path / "whole", found, PRIVATE)
    assert {word for word in whole if word.startswith("only")} == {
        f"only{i}" for i in range(40) if split_of(f"user{i}") == "train"
    }


def test_the_origin_is_recorded_with_what_it_spends(made):
    origin = TokenStore.open(made / "private").header.vocabulary_origin
    assert (origin.kind, origin.private) == ("private", plan_vocabulary(8.0, 1e-6, 6))
    record = json.loads((made / "private" / "store.json").read_text())["vocabulary_origin"]
    assert (record["kind"], record["covered"]) == ("private", True)
    assert (record["guarantee"]["epsilon"], record["guarantee"]["delta"]) == (8.0, 1e-6)
    assert record["unit"].startswith("client")
    assert record["adjacency"].startswith("add-or-remove")
    assert TokenStore.open(made / "plain").header.vocabulary_origin == VocabularyOrigin("training data")


def test_a_store_without_a_record_counts_as_made_of_its_text_and_a_damaged_one_is_named(private_store):
    change_record(private_store, lambda document: document["vocabulary_origin"]["guarantee"].update(epsilon=-1))
    with pytest.raises(DataError, match=r"store\.json: a field is missing or wrong"):
        TokenStore.open(private_store)
    change_record(private_store, lambda document: document.pop("vocabulary_origin"))
    origin = TokenStore.open(private_store).header.vocabulary_origin
    assert origin == UNKNOWN
    assert not origin.covered
    assert "NOT COVERED" in origin.sentence()
    assert "there is no record of it" in origin.sentence()


@pytest.mark.long
def test_a_given_vocabulary_takes_its_record_along(made, tmp_path):
    for name in ("private", "plain"):
        first = TokenStore.open(made / name).header
        given = ImportSettings(vocabulary=made / name / "tokenizer.json")
        second = import_made_up(tmp_path / f"{name}-second", texts(60), given).header
        assert second.vocabulary_origin == replace(first.vocabulary_origin, of_another=True, of_users=name == "private")
        assert "another data set" in second.vocabulary_origin.sentence()
        third = ImportSettings(vocabulary=tmp_path / f"{name}-second" / "tokenizer.json")
        assert import_made_up(tmp_path / f"{name}-third", texts(60), third).header.vocabulary_origin == (
            second.vocabulary_origin
        )


def test_a_vocabulary_that_is_private_for_documents_is_not_covered_in_another_data_set(private_store, tmp_path):
    change_record(private_store, lambda document: document.update(without_users=True))
    assert TokenStore.open(private_store).header.vocabulary_origin.covered
    for before, name in (("store", "second"), ("second", "third")):
        given = ImportSettings(vocabulary=tmp_path / before / "tokenizer.json")
        import_made_up(tmp_path / name, texts(60), given)
        assert not TokenStore.open(tmp_path / name).header.vocabulary_origin.covered


def test_a_given_vocabulary_is_not_covered_unless_it_is_said_to_be_public(made, tmp_path):
    # Without the record that lies beside it.
    given = ImportSettings(vocabulary=shutil.copy(made / "plain" / "tokenizer.json", tmp_path))
    origin = import_made_up(tmp_path / "given", texts(), given).header.vocabulary_origin
    assert origin == VocabularyOrigin("given")
    assert "NOT COVERED" in origin.sentence()
    public = replace(given, vocabulary_origin="public")
    origin = import_made_up(tmp_path / "public", texts(), public).header.vocabulary_origin
    assert origin == VocabularyOrigin("public")
    assert origin.covered


@pytest.mark.parametrize("kind", ["private", "plain"])
def test_a_vocabulary_is_not_public_to_the_text_that_it_was_made_of(made, kind, tmp_path):
    settings = ImportSettings(vocabulary=made / kind / "tokenizer.json", vocabulary_origin="public")
    with pytest.raises(DataError, match="was made of the text of these very training clients"):
        import_made_up(tmp_path / "again", texts(), settings)
    assert not (tmp_path / "again").exists()
    # It may be to other text: that of `store` may be public itself.
    other = import_made_up(tmp_path / "other", texts(60), settings).header
    assert other.vocabulary_origin.kind == "public"
    assert other.vocabulary_origin.text == read_header(made / kind).splits["train"].sha256
    # However many data sets it went through.
    for said in (None, "public"):
        import_made_up(tmp_path / "between", texts(60), replace(settings, vocabulary_origin=said), overwrite=True)
        between = replace(settings, vocabulary=tmp_path / "between" / "tokenizer.json", vocabulary_origin="public")
        with pytest.raises(DataError, match="was made of the text of these very training clients"):
            import_made_up(tmp_path / "again", texts(), between)


def test_a_private_vocabulary_of_words_and_of_characters_where_no_word_is_left(tmp_path):
    settings = replace(PRIVATE, tokenizer="words")
    import_made_up(tmp_path / "store", texts(), settings)
    assert knows(tmp_path / "store", "train")
    assert not knows(tmp_path / "store", SECRET)
    with pytest.raises(DataError, match="no word is frequent enough"):
        import_made_up(tmp_path / "few", texts(3), settings)
    import_made_up(tmp_path / "few", texts(3))
    assert not knows(tmp_path / "few", "train")
    assert knows(tmp_path / "few", "t")


def test_an_interrupted_private_import_keeps_its_vocabulary(tmp_path):
    def interrupt(phase, done, total, unit):
        if phase == "tokenize":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_made_up(tmp_path / "store", texts(), progress=interrupt)
    drawn = (tmp_path / ".store.import" / "tokenizer.json").read_bytes()
    import_made_up(tmp_path / "store", texts())
    assert (tmp_path / "store" / "tokenizer.json").read_bytes() == drawn


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vocabulary_epsilon": 1.0}, "vocabulary_delta is not given"),
        ({"vocabulary_delta": 1e-6}, "vocabulary_epsilon is not given"),
        ({"vocabulary_origin": "public"}, "no vocabulary is given"),
        ({"vocabulary": "t.json", "vocabulary_epsilon": 1.0, "vocabulary_delta": 1e-6}, "leave out one of them"),
    ],
)
def test_settings_are_checked(options, said):
    with pytest.raises(ConfigurationError, match=said):
        ImportSettings(**options)


@pytest.mark.long
def test_the_commands_say_where_the_vocabulary_comes_from(tmp_path, capsys):
    lines = [json.dumps({"user": text.client_id, "text": one}) for text in texts() for one in text.sentences]
    (tmp_path / "messages.jsonl").write_text("\n".join(lines))
    command = ["import", "jsonl", str(tmp_path / "messages.jsonl"), "--vocabulary-size", "300", "--workers", "1"]
    private = ["--vocabulary-epsilon", "8", "--vocabulary-delta", "1e-6", "--vocabulary-words-per-client", "6"]
    assert COMMAND.main([*command, *private, "--out", str(tmp_path / "private")]) == 0
    assert "the vocabulary is covered" in capsys.readouterr().out
    assert COMMAND.main(["describe", str(tmp_path / "private")]) == 0
    assert "epsilon = 8, delta = 1e-06" in capsys.readouterr().out
    assert COMMAND.main([*command, "--out", str(tmp_path / "plain")]) == 0
    assert "VOCABULARY NOT COVERED" in capsys.readouterr().out


def test_two_imports_of_the_same_people_spend_twice_also_where_their_words_are_equal(tmp_path):
    found = [ClientText(f"user{i}", ["train"]) for i in range(60)]
    settings = replace(PRIVATE, vocabulary_epsilon=4.0)
    plan, delta, runs, private = PrivacyPlan("gaussian", 3, 5.0, BoundedParticipation(None, 1)), 1e-5, {}, None
    for name in ("one", "other"):
        header = import_made_up(tmp_path / name, found, settings).header
        about = {"vocabulary": header.tokenizer_fingerprint, "training_data_sha256": header.splits["train"].sha256}
        runs[name] = PrivacyLedger(tmp_path / f"{name}.jsonl")
        runs[name].begin(plan, delta, name, about | {"vocabulary_origin": header.vocabulary_origin.as_json()})
        runs[name].intend(Release(3, "digest", "parameters"))
        private = header.vocabulary_origin.private
    # A word that some fifty people write falls below the threshold with a chance of less than 1e-100.
    first, second = ((tmp_path / name / "tokenizer.json").read_bytes() for name in runs)
    assert first == second
    rho = 2 * account(plan, delta).rho + 2 / (2 * private.noise_multiplier**2)
    exact = gaussian_epsilon(1.0, math.sqrt(2 * rho), delta - 2 * private.threshold_delta)
    assert state_together(runs).epsilon == pytest.approx(exact, rel=0.01)
