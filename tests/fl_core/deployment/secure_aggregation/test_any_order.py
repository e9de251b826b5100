"""An attempt whatever comes when: answers late, twice or never, and a server that lies to honest members."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError, RefusedAnswerError
from tests.support import secure_cohorts as cohorts

COUNT, THRESHOLD = 5, 3
MEMBERS = st.integers(0, COUNT - 1)


class Attempts(RuleBasedStateMachine):
    """Honest members of a complete graph, an honest server beside one that says of survivors what it likes."""

    def __init__(self):
        super().__init__()
        self.cohort = cohorts.Cohort(COUNT, cohorts.rules(COUNT, length=4))
        self.attempt, self.said, self.signed = self.cohort.attempt, [], {}

    def ask(self, call):
        try:
            return call()
        except (UnsafeSumError, RefusedAnswerError, AbandonedError):
            return None

    @rule(one=MEMBERS)
    def deals(self, one):
        self.ask(lambda: self.attempt.deal(one, self.cohort.members[one].deal(self.cohort.roster)))

    @precondition(lambda self: len(self.attempt.dealings) >= THRESHOLD)
    @rule()
    def dealing_closes(self):
        self.ask(self.attempt.close_dealing)

    @rule(one=MEMBERS)
    def masks(self, one):
        upload = self.ask(lambda: self.cohort.members[one].mask(self.attempt.dealt_for(one), self.cohort.integers[one]))
        if upload is not None:
            assert self.cohort.uploads.setdefault(one, upload) == upload
            merged = self.cohort.unpacked(upload)
            self.ask(lambda: self.attempt.merge(self.cohort.total, frozenset([one]), merged))

    @precondition(lambda self: len(self.attempt.survivors) >= THRESHOLD)
    @rule()
    def survivors_are_announced(self):
        self.ask(self.attempt.announce)

    @precondition(lambda self: self.attempt.phase == "agreeing")
    @rule(one=MEMBERS)
    def agrees(self, one):
        signature = self.ask(lambda: self.cohort.members[one].agree(self.attempt.survivors))
        if signature is not None:
            self.signed[one] = signature
            self.ask(lambda: self.attempt.agree(one, signature))

    @precondition(lambda self: len(self.attempt.signatures) > THRESHOLD)
    @rule()
    def agreeing_closes(self):
        self.ask(self.attempt.close_agreeing)

    @precondition(lambda self: self.attempt.phase == "revealing")
    @rule(one=MEMBERS)
    def reveals(self, one):
        revealed = self.ask(lambda: self.cohort.members[one].reveal(self.attempt.signatures_for(one)))
        if revealed is not None:
            self.said.append((one, revealed))
            self.ask(lambda: self.attempt.reveal(one, revealed))

    @rule(one=MEMBERS, survivors=st.frozensets(MEMBERS))
    def server_lies(self, one, survivors):
        signature = self.ask(lambda: self.cohort.members[one].agree(survivors))
        if signature is not None:
            self.signed[one] = signature

    @rule(one=MEMBERS)
    def server_sends_all_signatures_that_it_has(self, one):
        revealed = self.ask(lambda: self.cohort.members[one].reveal(self.signed))
        if revealed is not None:
            self.said.append((one, revealed))

    def has_shares_enough(self):
        return all(len(given) >= THRESHOLD for secrets in self.attempt._shares() for given in secrets.values())

    @precondition(lambda self: self.attempt.phase == "revealing" and self.has_shares_enough())
    @rule()
    def finishes(self):
        assert np.array_equal(self.cohort.finish(), self.cohort.plain())

    @invariant()
    def both_secrets_of_nobody_are_known_and_all_who_reveal_tell_one_story(self):
        assert len({frozenset([*revealed.own_masks, one]) for one, revealed in self.said}) <= 1
        for victim in range(COUNT):
            own = {one for one, revealed in self.said if victim in revealed.own_masks}
            key = {one for one, revealed in self.said if victim in revealed.masking_keys}
            assert not own & key
            assert min(len(own), len(key)) < THRESHOLD

    @invariant()
    def sets_are_parts_of_those_before(self):
        assert self.attempt.survivors <= self.attempt.dealings.keys() <= set(range(COUNT))
        assert self.attempt.revealed.keys() <= self.attempt.survivors


@pytest.mark.long
def test_sums_are_right_and_no_member_is_shown_in_any_order_of_answers():
    run_state_machine_as_test(Attempts, settings=settings(max_examples=100, stateful_step_count=40))
