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
    about = {"population": "people", "seed": 3, "program": program, "round_number": 0}
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
        for other in ({"seed": 4}, {"population": "others"}, {"program": others}):
            assert later.read(asked(**other), LIKE) is None
        assert later.read(asked(), {"head": jax.ShapeDtypeStruct((3, 2), np.float32)}) is None


def test_its_owner_alone_can_read_the_file_and_it_is_whole(tmp_path):
    file = tmp_path / "layers"
    file.with_name("layers.partial").write_text("of a crash")
    KeptState(file).write(asked(), KEPT)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["layers"]
    KeptState(file).write(asked(), ())
    np.testing.assert_array_equal(KeptState(file).read(asked(), LIKE)["head"], KEPT["head"])


def test_a_file_that_cannot_be_used_is_told_and_stays(tmp_path):
    file = tmp_path / "layers"
    file.write_bytes(b"something else")
    with pytest.raises(ClientError, match=r"layers: not the layers that this device keeps .* or remove it"):
        KeptState(file).read(asked(), LIKE)
    assert file.read_bytes() == b"something else"
    with pytest.raises(ClientError, match=r"cannot be written .* make room, or permit writing there"):
        KeptState(tmp_path / "nowhere" / "layers").write(asked(), KEPT)
