"""A private run goes on with the people that it was begun with, and keeps what it promised of each by name."""

import json
import shutil

import numpy as np
import pytest

from fedlm.fl_core.errors import CheckpointError, DataError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, EpochParticipation
from fedlm.fl_core.privacy.private_cohorts import MinSeparationSampler
from fedlm.fl_core.privacy.record.participation_record import ParticipationRecord
from fedlm.fl_core.runs.capabilities.data_budget import DataBudget
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.support.plain_runs import PRIVATE, run, run_until

pytestmark = pytest.mark.usefixtures("plain_cohorts")


def write_store(small_store, out, writers):
    """Write text of some people, as much of each, by the vocabulary of a store."""
    with StoreWriter(out, "other", Tokenizer.load(small_store / "tokenizer.json")) as writer:
        for number in writers:
            writer.add("train", f"writer{number}", np.random.default_rng(number).integers(10, 100, (3, 5)))
        for split in ("heldout", "test"):
            writer.add(split, split, np.full((3, 5), 11))
    return out


@pytest.fixture
def interrupted(small_store, tmp_path):
    """The settings and the folder of a private run that ended after two of four rounds."""
    settings = PRIVATE | {
        "data": write_store(small_store, tmp_path / "store", range(10, 70)),
        "rounds": 4,
        "min_separation": 3,
        "checkpoint_every": 1,
        "privacy": "tree",
    }
    run_until(1, settings, tmp_path / "out")
    return settings, tmp_path / "out"


def test_a_copy_of_the_folder_goes_on_only_where_the_run_has_not(interrupted, tmp_path):
    settings, out = interrupted
    copy = shutil.copytree(out, tmp_path / "copy")
    with pytest.raises(CheckpointError, match=f"a copy of {out}, which is still there"):
        go_on((settings, copy))
    out.rename(tmp_path / "gone")
    assert go_on((settings, copy))["rounds"] == 4


def test_copies_that_went_apart_are_noticed_by_a_budget_of_their_data(interrupted, tmp_path):
    settings, out = interrupted
    DataBudget.set(settings["data"], 1e3, 1e-5)
    copy = shutil.copytree(out, tmp_path / "copy")
    run_until(2, settings, out)
    # As where the copy is on another machine that sees the same data.
    out.rename(tmp_path / "hidden")
    with pytest.raises(CheckpointError, match="has gone on in a copy of this folder"):
        go_on((settings, copy))
    (tmp_path / "hidden").rename(out)
    assert go_on((settings, out))["rounds"] == 4


def go_on(interrupted, **changes):
    settings, out = interrupted
    return run(settings, out, **changes)


def test_people_who_are_gone_or_others_are_noticed(interrupted, small_store, tmp_path):
    """Also where nothing but names differs, so that all sizes are the same."""
    for name, writers in {"fewer": range(14, 70), "others": [*range(10, 69), 99]}.items():
        with pytest.raises(CheckpointError, match=r"another (content of data|set of training clients)"):
            go_on(interrupted, data=write_store(small_store, tmp_path / name, writers))
    again = write_store(small_store, tmp_path / "again", range(10, 70))
    assert go_on(interrupted, data=again)["rounds"] == 4


def test_a_file_that_was_changed_after_the_import_is_noticed(interrupted):
    train = interrupted[0]["data"] / "train.arrow"
    content = train.read_bytes()
    at = content.index(b"writer1")
    train.write_bytes(content[:at] + b"wrote" + content[at + 5 :])
    with pytest.raises(DataError, match="not what was imported"):
        go_on(interrupted)
    train.write_bytes(content)
    assert go_on(interrupted)["rounds"] == 4


def test_who_took_part_is_known_by_name_whatever_the_sampler_draws(interrupted, monkeypatch):
    out = interrupted[1]
    record = out / "privacy" / "participation.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    names = TokenStore.open(interrupted[0]["data"]).split("train").client_ids
    assert [line["round"] for line in lines][:2] == [0, 1]
    assert all(len(line["clients"]) == 6 and set(line["clients"]) <= set(names) for line in lines)
    taken = {name for line in lines[:2] for name in line["clients"]}
    monkeypatch.setattr(
        MinSeparationSampler,
        "sample",
        lambda self, number: np.array([index for index, name in enumerate(names) if name in taken][:6]),
    )
    with pytest.raises(CheckpointError, match="may not take part in round 2"):
        go_on(interrupted)
    monkeypatch.undo()
    record.write_text("".join(json.dumps(line) + "\n" for line in lines[:1]))
    with pytest.raises(CheckpointError, match="knows who took part in 1 rounds, but 2 were released"):
        go_on(interrupted)


@pytest.mark.parametrize(
    ("promised", "allowed", "refused"),
    [
        (BoundedParticipation(None, 3), [0, 3, 6], [0, 2]),
        (BoundedParticipation(2, 1), [0, 1], [0, 1, 2]),
        (EpochParticipation(4), [3, 4, 11], [4, 7]),
    ],
    ids=str,
)
def test_a_record_holds_to_the_promise(promised, allowed, refused, tmp_path):
    path, here = tmp_path / "record", np.array([1])
    for rounds, fits in ((allowed, True), (refused, False)):
        record = ParticipationRecord(path, ["a", "b"], promised)
        record.settle(0)
        for number in rounds[:-1]:
            record.note(number, here)
        if fits:
            record.note(rounds[-1], here)
            record.write()
            assert [json.loads(line)["clients"] for line in path.read_text().splitlines()] == [["b"]] * len(rounds)
        else:
            with pytest.raises(CheckpointError, match="client 'b' took part"):
                record.note(rounds[-1], here)
    # What was written is known by name, in whichever order clients are numbered later.
    again = ParticipationRecord(path, ["b", "a"], promised)
    path.write_text('{"round": 0, "clients": ["b"]}\n{"round": 1, "clients": ["a"]}\n{"rou')
    again.settle(1)
    assert path.read_text() == '{"round": 0, "clients": ["b"]}\n'
