"""Damaged, cut off, swapped and replayed files are found, and what was spent is never lost."""

import pytest

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE, PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger, Release
from fedlm.fl_core.privacy.record.releases import Releases
from fedlm.fl_core.privacy.statement import state

PLAN = PrivacyPlan("tree", 20, 3.0, BoundedParticipation(3, 4))
# Separations between rounds of different generations are not made use of, so here interruptions cost sensitivity.
DEAR_TO_INTERRUPT = PrivacyPlan("banded", 20, 3.0, BoundedParticipation(4, 6), coefficients=(0.8, 0.5, 0.3))
DELTA = 1e-6


class Stored:
    """Checkpoints that are nothing but their digests."""

    def __init__(self):
        self.digests = {}

    def latest_round(self):
        return max(self.digests, default=0)

    def digest(self, rounds):
        return self.digests.get(rounds)


def ledger_in(directory):
    return PrivacyLedger(directory / "privacy" / LEDGER_FILE)


def begin(directory, stored=None, plan=PLAN):
    releases = Releases(directory / "privacy")
    return releases, releases.resume(plan, DELTA, {"whose": "ours"}, stored or Stored())


def release(releases, stored, rounds):
    releases.save(rounds, f"digest of {rounds}", lambda: stored.digests.update({rounds: f"digest of {rounds}"}))


@pytest.fixture
def run(tmp_path):
    """A run with releases after 5 and 10 rounds: (folder, checkpoints)."""
    stored = Stored()
    releases, _ = begin(tmp_path)
    release(releases, stored, 5)
    release(releases, stored, 10)
    return tmp_path, stored


def test_a_new_run_begins_with_a_secret_that_only_its_owner_can_read(tmp_path):
    releases, found = begin(tmp_path)
    assert (found.checkpoint, found.first, found.end, found.fresh_noise) == (0, 0, 20, True)
    path = tmp_path / "privacy/noise-secret-0"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "privacy").stat().st_mode & 0o777 == 0o700
    assert path.read_bytes().hex() == found.secret
    assert found.secret not in (tmp_path / "privacy" / LEDGER_FILE).read_text()
    other, _ = begin(tmp_path / "other")
    assert other.ledger.commitments != releases.ledger.commitments


def test_spent_counts_intents(run):
    directory, _ = run
    ledger = ledger_in(directory)
    assert state(ledger).own == account(PLAN, DELTA, [(0, 10)])
    ledger.intend(Release(15, "lost"))
    assert state(ledger_in(directory)).own == account(PLAN, DELTA, [(0, 15)])


def test_a_lost_checkpoint_counts_and_noise_begins_anew(run):
    directory, stored = run
    ledger_in(directory).intend(Release(13, "lost"))
    before, found = begin(directory, stored)
    assert (found.checkpoint, found.first, found.noise_from) == (10, 13, 13)
    assert found.fresh_noise
    assert before.ledger.generations == [(0, 13), (13, 13)]
    assert (directory / "privacy/noise-secret-1").read_bytes().hex() == found.secret
    assert found.secret != (directory / "privacy/noise-secret-0").read_bytes().hex()
    # A process that was taken over from may still write it.
    stored.digests[13] = "lost"
    _, again = begin(directory, stored)
    assert again == found


def test_a_record_of_another_process_is_not_written_over(run):
    directory, _ = run
    late = ledger_in(directory)
    ledger_in(directory).intend(Release(13, "of who leads now"))
    with pytest.raises(LedgerError, match="another process has added records"):
        late.intend(Release(12, "of who was frozen"))
    assert ledger_in(directory).open_intent == Release(13, "of who leads now")


def test_a_round_that_may_have_been_seen_counts_whatever_becomes_of_it(run):
    directory, stored = run
    releases, _ = begin(directory, stored)
    releases.see(11)
    assert state(ledger_in(directory)).own == account(PLAN, DELTA, [(0, 11)])
    with pytest.raises(LedgerError, match="were released before"):
        releases.ledger.intend(Release(10, "of rounds before"))
    _, found = begin(directory, stored)
    assert (found.checkpoint, found.first, found.fresh_noise) == (10, 11, True)
    assert ledger_in(directory).generations == [(0, 11), (11, 11)]


def test_a_run_with_interruptions_ends_early_rather_than_spend_more_than_planned(tmp_path):
    stored, rounds, interruptions = Stored(), 0, 0
    planned = account(DEAR_TO_INTERRUPT, DELTA).epsilon
    while True:
        releases, found = begin(tmp_path, stored, DEAR_TO_INTERRUPT)
        if found.first >= found.end:
            break
        rounds = min(found.first + 3, found.end)
        if interruptions < 4:
            interruptions += 1
            releases.ledger.intend(Release(rounds, "lost"))
        else:
            release(releases, stored, rounds)
    assert state(releases.ledger).own.epsilon <= planned * (1 + 1e-9)
    assert interruptions == 4
    assert found.end < DEAR_TO_INTERRUPT.rounds


def test_an_intent_whose_checkpoint_is_there_becomes_a_release(run):
    directory, stored = run
    ledger_in(directory).intend(Release(12, "whole"))
    stored.digests[12] = "other"
    with pytest.raises(CheckpointError, match="is not the one that it names"):
        begin(directory, stored)
    stored.digests[12] = "whole"
    releases, found = begin(directory, stored)
    assert (found.checkpoint, found.first, found.noise_from) == (12, 12, 0)
    assert releases.ledger.last_release == Release(12, "whole")


@pytest.mark.parametrize("length", [0, 1, 90, 250, 399])
def test_a_last_line_that_was_cut_off_is_dropped(run, length):
    directory, stored = run
    path = directory / "privacy" / LEDGER_FILE
    content = path.read_bytes()
    path.write_bytes(content + content[:length].replace(b"\n", b""))
    _, found = begin(directory, stored)
    assert (found.checkpoint, found.first, found.noise_from, found.end) == (10, 10, 0, 20)
    assert not found.fresh_noise
    release(Releases(directory / "privacy"), stored, 12)
    assert begin(directory, stored)[1].first == 12


def lines_of(directory):
    return (directory / "privacy" / LEDGER_FILE).read_text().splitlines(keepends=True)


def write_lines(directory, lines):
    (directory / "privacy" / LEDGER_FILE).write_text("".join(lines))


def test_every_changed_byte_is_found(run):
    directory, stored = run
    content = (directory / "privacy" / LEDGER_FILE).read_bytes()
    for place in range(0, len(content) - 1, 7):
        changed = bytearray(content)
        changed[place] ^= 4
        (directory / "privacy" / LEDGER_FILE).write_bytes(changed)
        with pytest.raises(LedgerError):
            begin(directory, stored)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:2] + lines[3:],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: lines[1:],
        lambda lines: lines + lines[-1:],
        lambda lines: [*lines, "{}\n"],
        lambda lines: [*lines, "not json\n"],
    ],
    ids=["missing", "swapped", "headless", "repeated", "foreign", "garbage"],
)
def test_missing_swapped_and_foreign_lines_are_found(run, change):
    directory, stored = run
    write_lines(directory, change(lines_of(directory)))
    with pytest.raises(LedgerError):
        begin(directory, stored)


def test_an_older_ledger_is_found(run):
    directory, stored = run
    for kept in range(len(lines_of(directory)) - 2):
        lines = lines_of(directory)
        write_lines(directory, lines[:kept])
        with pytest.raises(LedgerError, match=r"cut off, or is an older copy|there is no ledger"):
            begin(directory, stored)
        write_lines(directory, lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda digests: digests.pop(10), "missing, damaged or another"),
        (lambda digests: digests.update({10: digests[5]}), "missing, damaged or another"),
        (lambda digests: digests.update({11: "from elsewhere"}), "cut off, or is an older copy"),
    ],
    ids=["missing", "replayed", "newer"],
)
def test_checkpoints_that_the_ledger_does_not_know_are_found(run, change, message):
    directory, stored = run
    change(stored.digests)
    with pytest.raises(CheckpointError, match=message):
        begin(directory, stored)


@pytest.mark.parametrize(
    "change", [lambda path: path.unlink(), lambda path: path.write_bytes(bytes(32)), lambda path: path.write_bytes(b"")]
)
def test_a_missing_or_other_secret_is_refused_and_cohorts_are_drawn_by_the_first(run, change):
    directory, stored = run
    releases, found = begin(directory, stored)
    drawn_by, path = releases.cohort_secret(), directory / "privacy/noise-secret-0"
    change(path)
    with pytest.raises(LedgerError, match="the secret of the noise is missing, or is not the one"):
        begin(directory, stored)
    path.write_bytes(bytes.fromhex(found.secret))
    # Also after noise began anew.
    ledger_in(directory).intend(Release(13, "lost"))
    releases, _ = begin(directory, stored)
    assert releases.cohort_secret() == drawn_by
    change(path)
    with pytest.raises(LedgerError, match="noise-secret-0: the secret of the noise is missing, or is not the one"):
        begin(directory, stored)[0].cohort_secret()


def test_another_plan_is_refused(run):
    directory, stored = run
    other = PrivacyPlan("tree", 20, 2.0, BoundedParticipation(3, 4))
    with pytest.raises(LedgerError, match=r"noise_multiplier was 3\.0 and is now 2\.0"):
        Releases(directory / "privacy").resume(other, DELTA, {}, stored)


def test_rounds_are_released_once(run):
    directory, _ = run
    ledger = ledger_in(directory)
    with pytest.raises(LedgerError, match="rounds up to 10 were released before"):
        ledger.intend(Release(10, "again"))
    with pytest.raises(LedgerError, match="cannot follow"):
        ledger.confirm()


@pytest.mark.parametrize(("released", "over"), [(10, False), (20, True)])
def test_noise_of_another_version_is_not_gone_on_with(tmp_path, monkeypatch, released, over):
    """Its first rounds would be correlated with other noise than its last. What it released stays readable."""
    stored = Stored()
    with monkeypatch.context() as other:
        for module in ("ledger", "releases"):
            other.setattr(f"fedlm.fl_core.privacy.record.{module}.NOISE_FORMAT", "Threefry")
        releases, _ = begin(tmp_path, stored)
        release(releases, stored, released)
    written = lines_of(tmp_path)
    if over:
        assert not begin(tmp_path, stored)[1].goes_on
    else:
        with pytest.raises(LedgerError, match=r"ledger\.jsonl: the run was begun by another version of fedlm"):
            begin(tmp_path, stored)
    assert lines_of(tmp_path) == written
    assert state(ledger_in(tmp_path)).own == account(PLAN, DELTA, [(0, released)])


def repeatable(directory, stored):
    releases = Releases(directory / "privacy", new_secret=lambda generation: bytes(32))
    return releases, releases.resume(PLAN, DELTA, {}, stored)


def test_rounds_with_repeatable_noise_are_run_again_to_the_same_model_alone(tmp_path):
    stored = Stored()
    releases, _ = repeatable(tmp_path, stored)
    releases.ledger.intend(Release(5, "digest of 5"))
    releases, found = repeatable(tmp_path, stored)
    assert (found.checkpoint, found.first) == (0, 0)
    with pytest.raises(LedgerError, match="gave another model"):
        releases.save(5, "another", lambda: None)
    release(releases, stored, 5)
    assert releases.ledger.last_release == Release(5, "digest of 5")


def test_the_ledger_has_a_release_before_its_checkpoint_is_written(tmp_path):
    releases, _ = begin(tmp_path)
    known = []
    releases.save(5, "digest", lambda: known.append(ledger_in(tmp_path).open_intent))
    assert known == [Release(5, "digest")]
