"""What a device keeps to itself from round to round."""

import stat

import jax
import numpy as np
import pytest

from fedlm.clients.device.kept_state import KeptState
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import ClientError

KEPT = {"head": np.arange(6, dtype=np.float32).reshape(2, 3), "table": None}
LIKE = jax.eval_shape(lambda: jax.tree_util.tree_map(np.asarray, KEPT))


def asked(**changes):
    program = messages.TrainingProgram(model="a", algorithm=messages.ClientAlgorithm(personal_layers=["head"]))
    about = {"run": "a", "population": "people", "seed": 3, "program": program, "round_number": 0}
    return messages.RoundConfiguration(**about | changes)


@pytest.mark.parametrize("path", [None, "text.jsonl.layers"])
def test_what_was_kept_is_there_in_the_next_round_of_the_run_alone(tmp_path, path):
    file = None if path is None else tmp_path / path
    kept = KeptState(file)
    assert kept.read(asked(), LIKE) is None
    kept.write(asked(), KEPT)
    for later in (kept,) if file is None else (kept, KeptState(file)):
        found = later.read(asked(round_number=7, client_index=4, learning_rate=0.5), LIKE)
        np.testing.assert_array_equal(found["head"], KEPT["head"])
        assert found["table"] is None
        others = messages.TrainingProgram(model="b", algorithm=messages.ClientAlgorithm(personal_layers=["head"]))
        for other in ({"run": "b"}, {"seed": 4}, {"population": "others"}, {"program": others}):
            assert later.read(asked(**other), LIKE) is None
        assert later.read(asked(), {"head": jax.ShapeDtypeStruct((3, 2), np.float32)}) is None


@pytest.mark.parametrize("path", [None, "text.jsonl.layers"])
def test_the_same_request_begins_with_what_it_began_with_before(tmp_path, path):
    kept = KeptState(None if path is None else tmp_path / path)
    more = {"head": KEPT["head"] + 1, "table": None}
    kept.write(asked(attempt=b"1", seconds=9), KEPT)
    assert kept.read(asked(attempt=b"2"), LIKE) is None
    assert kept.name(asked()) is None
    second = asked(round_number=1)
    name = kept.name(second)
    for _ in range(2):
        np.testing.assert_array_equal(kept.read(second, LIKE)["head"], KEPT["head"])
        assert kept.name(second) == name
        kept.write(second, more)
    third = asked(round_number=2)
    np.testing.assert_array_equal(kept.read(third, LIKE)["head"], more["head"])
    assert kept.name(third) not in (None, name)
    # What came before that is gone, and so the first request is another one now.
    assert kept.name(asked()) == kept.name(third)


def test_layers_that_their_owner_removed_do_not_come_back(tmp_path):
    kept = KeptState(tmp_path / "layers")
    kept.write(asked(), KEPT)
    (tmp_path / "layers").unlink()
    assert kept.read(asked(round_number=1), LIKE) is None
    assert kept.name(asked(round_number=1)) is None


def test_its_owner_alone_can_read_the_file_and_it_is_whole(tmp_path):
    file = tmp_path / "layers"
    file.with_name("layers.partial").write_text("of a crash")
    KeptState(file).write(asked(), KEPT)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["layers"]
    KeptState(file).write(asked(), ())
    np.testing.assert_array_equal(KeptState(file).read(asked(round_number=1), LIKE)["head"], KEPT["head"])


def test_a_file_that_cannot_be_used_is_told_and_stays(tmp_path):
    file = tmp_path / "layers"
    file.write_bytes(b"something else")
    with pytest.raises(ClientError, match=r"layers: not the layers that this device keeps .* or remove it"):
        KeptState(file).read(asked(), LIKE)
    assert file.read_bytes() == b"something else"
    KeptState(file.with_name("ruined")).write(asked(), {"head": np.full((2, 3), np.nan, np.float32), "table": None})
    with pytest.raises(ClientError, match=r"ruined: not the layers .* has numbers that are not finite.* or remove it"):
        KeptState(file.with_name("ruined")).read(asked(round_number=1), LIKE)
    with pytest.raises(ClientError, match=r"cannot be written .* make room, or permit writing there"):
        KeptState(tmp_path / "nowhere" / "layers").write(asked(), KEPT)
