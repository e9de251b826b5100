"""A client of plans counts its rounds as fedlm's client does, and refuses the same."""

from hypothesis import given
from hypothesis import strategies as st

from fedlm.clients import own_participation as native
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.errors import ConfigurationError
from fedlm_client.errors import ClientError
from fedlm_client.own_participation import OwnParticipation

PLANS = [None, (8, 3, 2), (8, None, 2), (8, 4, 2), (8, 3, 1), (20, 3, 2), (4, 2, 3)]
STEPS = st.tuples(
    st.sampled_from(["may", "tell", "take"]),
    st.integers(0, 9),
    st.sampled_from(PLANS),
    st.sampled_from(["people", "others"]),
    st.booleans(),
)


def asked(number, plan, population):
    found = messages.RoundConfiguration(round_number=number, population=population, client_index=3)
    if plan is not None:
        rounds, most, apart = plan
        found.participation.CopyFrom(
            messages.ParticipationPlan(rounds=rounds, max_participations=most, min_separation=apart)
        )
    return found


def answers(make, refused, folder, steps, examples):
    """What a record says step by step: why not, or that it ends."""
    said = []
    for number, (call, round_number, plan, population, accepts) in enumerate(steps):
        record = make(folder / "record", accepts and number % 3 == 2)
        try:
            said.append(getattr(record, call)(asked(round_number, plan, population), examples))
        except refused:
            said.append("ends")
    return said


@given(st.lists(STEPS, max_size=14))
def test_both_clients_refuse_the_same(tmp_path_factory, steps):
    ours, theirs = (tmp_path_factory.mktemp(name) for name in ("ours", "theirs"))
    found = answers(OwnParticipation, ClientError, ours, steps, "1")
    assert found == answers(native.OwnParticipation, ConfigurationError, theirs, steps, (1, 1))


def test_a_record_is_read_by_both(tmp_path):
    record = OwnParticipation(tmp_path / "record")
    first = asked(0, (8, 1, 2), "people")
    assert record.may(first, "1") == ""
    record.take(first, "1")
    later = native.OwnParticipation(tmp_path / "record").may(asked(4, (8, 1, 2), "people"), (1, 1))
    assert "as often as the plan allows" in later
    assert (tmp_path / "record").stat().st_mode & 0o077 == 0
