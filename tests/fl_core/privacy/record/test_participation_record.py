import numpy as np

from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.record.participation_record import ParticipationRecord


def test_every_round_is_noted_from_the_first_on_and_none_twice(tmp_path):
    record = ParticipationRecord(tmp_path / "rounds.jsonl", ["ann", "bea", "cleo"], BoundedParticipation(2, 1))
    for number, cohort in ((0, [0, 1]), (1, [1, 2]), (1, [0])):
        record.note(number, np.array(cohort))
    record.write()
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert lines == ['{"round": 0, "clients": ["ann", "bea"]}', '{"round": 1, "clients": ["bea", "cleo"]}']


def test_a_client_may_take_part_in_round_after_round_where_no_separation_is_asked_for():
    assert BoundedParticipation(3).most(3) == 3
