"""What becomes of a private run's models: each is on disk, and in the ledger, before anybody sees it.

The order of writing is `intent` (ledger, synced), checkpoint (synced), `release` (ledger, synced); only then may
anything that was made of the model leave the process. After an interruption

- an intent whose checkpoint is whole becomes a release: the same model is handed out again;
- an intent without its checkpoint counts as released, since parts of the file may have been seen. Its rounds are over,
  the run goes on from the checkpoint before, and a fresh secret begins fresh noise;
- rounds after the last intent never left the process, and are run again. Where clients add the noise, whoever runs the
  server sees a round's sum before there is a model: the ledger says so first (`seen`). A round that was seen, and has
  no intent, is over, like an intent without its checkpoint.

Where noise follows from a public seed there is nothing to keep, and a simulation must be repeatable: an intent without
its checkpoint is carried out again, with the same noise. The rounds of a deployment cannot be repeated, so there it
counts as released too.

So no two outputs that anyone could have seen carry the same noise over different sums.
"""

import contextlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fedlm.fedlm_client.files import sync_to_disk
from fedlm.fl_core.atomic_files import Fence, append_whole, disk_errors
from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.privacy.noise.noise_source import NOISE_FORMAT, SECRET_BYTES, commitment, fresh_secret
from fedlm.fl_core.privacy.promise.guarantee import sensitivity_squared
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE, PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger, Release, cut_off
from fedlm.fl_core.privacy.record.standing import Standing


class StoredCheckpoints(Protocol):
    """What `Releases` needs to know of the checkpoints beside the ledger."""

    def latest_round(self) -> int:
        """The newest whole checkpoint's number of rounds, 0 where there is none."""
        ...

    def digest(self, rounds: int) -> str | None:
        """The digest of a checkpoint's content, None where there is no such checkpoint."""
        ...


class Budget(Protocol):
    """What a run that reserves from a budget asks of it, by the commitment to its first secret."""

    def reserve(self, commitment: str) -> None:
        """Reserve all that the run may spend; raises where that is too much."""
        ...

    def begun(self, commitment: str) -> None:
        """Learn that the run has a ledger."""
        ...

    def void(self, commitment: str) -> None:
        """Learn that the run never had one, and that its secret is gone."""
        ...


class Releases:
    """The ledger of a run, and the secrets of its noise, in a folder of their own."""

    def __init__(
        self,
        directory: Path,
        new_secret: Callable[[int], bytes] | None = None,
        repeatable: bool = True,
        budget: Budget | None = None,
        *,
        fence: Fence = contextlib.nullcontext,
    ):
        """Open the folder; it is made where absent.

        Args:
          directory: only for this, and only readable by whom may know the noise.
          new_secret: makes the secret of a generation, counted from 0, for noise that is repeatable and hides nothing;
            secrets come from the operating system's entropy where None.
          repeatable: whether rounds that are run again with the same noise come to the same sums.
          budget: from which the run reserves what it may spend, before it begins; None where there is none.
          fence: within which the folder is written.
        """
        self._budget, self._fence = budget, fence
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._new_secret = new_secret or (lambda generation: fresh_secret())
        self._repeatable = repeatable and new_secret is not None
        self.ledger = PrivacyLedger(directory / LEDGER_FILE, fence)

    def resume(
        self, plan: PrivacyPlan, delta: float, about: dict[str, Any], checkpoints: StoredCheckpoints
    ) -> Standing:
        """Begin a run, or find out where an interrupted one stands.

        `about` are facts that tell whose ledger it is.

        Raises:
          LedgerError: ledger, secret and checkpoints do not belong together.
        """
        if self.ledger.is_copy:
            raise LedgerError(
                f"{self._directory / LEDGER_FILE}: this is a copy that was made while the run could go on. What was "
                f"released since is not known, so all {self.ledger.plan.rounds} planned rounds count as released. To "
                f"train further begin another run with its model, by {setting('init_from')} {self._directory.parent}"
            )
        if not self.ledger.records:
            if checkpoints.latest_round():
                raise LedgerError(
                    f"{self._directory}: there is no ledger, but there are checkpoints of {checkpoints.latest_round()} "
                    f"rounds; put the ledger back, or give another {setting('out')} to begin a new run"
                )
            with self._fence():
                self._begin(plan, delta, about)
        if self._budget is not None:
            self._budget.begun(self.ledger.records[0]["secret"])
        begun = self.ledger.plan
        if begun.rounds != plan.rounds and (begun.mechanism, self.ledger.delta) == (plan.mechanism, delta):
            raise LedgerError(
                f"{self._directory / LEDGER_FILE}: the run was begun with another privacy plan (rounds was "
                f"{begun.rounds} and is now {plan.rounds}), and its promise is for those rounds. Give rounds "
                f"{begun.rounds}. For more rounds begin another run with the parameters of this one, by "
                f"{setting('init_from')} {self._directory.parent} and another {setting('out')}: it has a plan of its "
                "own, and its statement composes both"
            )
        if begun != plan or self.ledger.delta != delta:
            raise LedgerError(
                f"{self._directory / LEDGER_FILE}: the run was begun with another privacy plan "
                f"({_differences(begun, plan)}); give the same settings, or another {setting('out')}"
            )
        if self.ledger.noise_format != NOISE_FORMAT and self._standing(plan).goes_on:
            raise LedgerError(
                f"{self._directory / LEDGER_FILE}: the run was begun by another version of fedlm, with noise that "
                f"this one does not draw any more; begin a new run with another {setting('out')}"
            )
        self._settle(checkpoints)
        return self._standing(plan)

    def _begin(self, plan: PrivacyPlan, delta: float, about: dict[str, Any]) -> None:
        if self._budget is not None and self._secret_path(0).exists():
            # It was made, and perhaps reserved for, but no ledger says that it was used.
            self._budget.void(commitment(self._secret_path(0).read_bytes()))
        secret = commitment(self._make_secret(0))
        if self._budget is not None:
            self._budget.reserve(secret)
        self.ledger.begin(plan, delta, secret, about)

    def _settle(self, checkpoints: StoredCheckpoints) -> None:
        """Make the ledger and the checkpoints agree on what was released."""
        intent, last = self.ledger.open_intent, self.ledger.last_release
        newest = checkpoints.latest_round()
        # A process that was taken over from may have written its checkpoint after its rounds were over.
        known = max((record.get("rounds", 0) for record in self.ledger.records), default=0)
        if newest > known:
            raise cut_off(self._directory / LEDGER_FILE, known, newest)
        if last is not None and checkpoints.digest(last.rounds) != last.digest:
            raise CheckpointError(
                f"{self._directory / LEDGER_FILE}: the checkpoint of {last.rounds} rounds that it names is missing, "
                f"damaged or another; put that checkpoint back, or give another {setting('out')} to begin a new run"
            )
        if self.ledger.open_seen:
            self._begin_anew()
        if intent is None:
            return
        found = checkpoints.digest(intent.rounds)
        if found == intent.digest:
            self.ledger.confirm()
        elif found is None and not self._repeatable:
            self._begin_anew()
        elif found is not None:
            raise CheckpointError(
                f"{self._directory / LEDGER_FILE}: the checkpoint of {intent.rounds} rounds is not the one that it "
                "names; remove that checkpoint to go on from the one before it: its rounds then count as released"
            )

    def _begin_anew(self) -> None:
        # One that nobody leads any more must not replace a secret that the ledger names.
        with self._fence():
            self.ledger.restart(commitment(self._make_secret(len(self.ledger.generations))))

    def _standing(self, plan: PrivacyPlan) -> Standing:
        last = self.ledger.last_release
        generations = self.ledger.generations
        noise_from, seen = generations[-1]
        checkpoint = last.rounds if last else 0
        # An intent that is still open is of repeatable noise, and its rounds are run again.
        return Standing(
            checkpoint=checkpoint,
            first=checkpoint if self.ledger.open_intent else max(noise_from, seen),
            end=_last_affordable(plan, generations),
            noise_from=noise_from,
            secret=self._read_secret(len(generations) - 1).hex(),
        )

    def cohort_secret(self) -> bytes:
        """Make the secret of 32 bytes that cohorts are drawn by, the same in all generations. Raises LedgerError where
        the first secret, which it follows from, is not the one that the run was begun with."""
        return hmac.digest(self._read_secret(0), b"cohorts", "sha256")

    def see(self, rounds: int) -> None:
        """Enter that the last of so many rounds may be seen by whoever runs the server; when this returns, it may."""
        self.ledger.see(rounds)

    def save(self, rounds: int, digest: str, write: Callable[[], None], parameters: str = "") -> None:
        """Make a model durable; when this returns, it may be shown.

        Args:
          rounds: how many rounds it has seen.
          digest: of the checkpoint's content.
          write: writes the checkpoint; when it returns, the checkpoint is on disk.
          parameters: digest of the model's parameters alone.

        Raises:
          LedgerError: a run that should repeat what was interrupted came to something else.
        """
        release, intent = Release(rounds, digest, parameters), self.ledger.open_intent
        if intent is None:
            self.ledger.intend(release)
        elif intent[:2] != release[:2]:
            raise LedgerError(
                f"{self._directory / LEDGER_FILE}: {rounds} rounds that were run again after an interruption gave "
                f"another model: go on with the devices that it was begun with, or give another {setting('out')} to "
                "begin a new run"
            )
        write()
        self.ledger.confirm()

    def _secret_path(self, generation: int) -> Path:
        return self._directory / f"noise-secret-{generation}"

    def _make_secret(self, generation: int) -> bytes:
        """Write a secret before the ledger mentions it. One that was written, but not mentioned, has made no noise."""
        secret, path = self._new_secret(generation), self._secret_path(generation)
        with disk_errors(path):
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                append_whole(descriptor, secret, 0)
            finally:
                os.close(descriptor)
            sync_to_disk(self._directory)
        return secret

    def _read_secret(self, generation: int) -> bytes:
        path = self._secret_path(generation)
        secret = path.read_bytes() if path.exists() else b""
        named = self.ledger.commitments[generation]
        if len(secret) != SECRET_BYTES or not hmac.compare_digest(commitment(secret), named):
            raise LedgerError(
                f"{path}: the secret of the noise is missing, or is not the one that the ledger names; put it back, or "
                f"give another {setting('out')} to begin a new run"
            )
        return secret


def _last_affordable(plan: PrivacyPlan, generations: list[tuple[int, int]]) -> int:
    """The latest end of the run with which it spends no more than planned.

    Noise that began anew is correlated with less of what was before, so that as many rounds may cost a little more.
    """
    if plan.participation.sampled or len(generations) == 1:
        return plan.rounds
    planned = sensitivity_squared(plan, [(0, plan.rounds)])
    over, (first, seen) = [part for part in generations[:-1] if part[1] > part[0]], generations[-1]
    low, high = seen, plan.rounds
    while low < high:
        middle = (low + high + 1) // 2
        affordable = sensitivity_squared(plan, [*over, (first, middle)]) <= planned * (1 + 1e-9)
        low, high = (middle, high) if affordable else (low, middle - 1)
    return low


def _differences(old: PrivacyPlan, new: PrivacyPlan) -> str:
    before, after = old.as_json(), new.as_json()
    changed = [f"{name} was {before[name]} and is now {after[name]}" for name in after if before[name] != after[name]]
    return "; ".join(changed) or "another delta"
