"""What every process needs that clients talk to, made of the settings of a deployment."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jax

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.client_algorithms.interface import sent_by_client, sent_by_server
from fedlm.fl_core.deployment.plans.plan_offers import PLAN_BYTES, PlanOffer
from fedlm.fl_core.deployment.protocol.artifacts import Buffer, ServedArtifact
from fedlm.fl_core.deployment.protocol.training_program import write_training_program
from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.server.client_handlers import ClientHandlers, Offer, Rounds
from fedlm.fl_core.deployment.server.client_registry import ClientRegistry
from fedlm.fl_core.deployment.server.pacing import PaceSteering
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter, RateLimits
from fedlm.fl_core.deployment.server.reports.receiving import Receiver
from fedlm.fl_core.deployment.server.reports.round_sums import RoundSums
from fedlm.fl_core.deployment.server.reports.secure_sum import SecureSettings
from fedlm.fl_core.deployment.server.reports.streaming_sum import SumSettings
from fedlm.fl_core.deployment.server.reports.summed_integers import (
    ExactSums,
    NoisedSums,
    fitting,
    sum_layout,
)
from fedlm.fl_core.deployment.server.reports.upload_buffers import DiskRoom, UploadBuffers
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.server.task import PlaceInPopulation, Task
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.state_sql import SqlState
from fedlm.fl_core.exact_sums import number_of_coordinates
from fedlm.fl_core.runs.run_folder import TRANSFERS_FOLDER
from fedlm.fl_core.updates.update_bytes import DownloadEncoding, download_bytes, upload_bytes

# Of a checkpoint the parameters, two moments of them and what a client algorithm remembers, then the next download; and
# what the database, the ledger and files beside these grow by.
_KEPT_MODELS, _KEPT_BYTES = 5, 1 << 26
_ROSTER_BYTES = 4096
_UPLOADS_IN_MEMORY = 1 << 26
# Of a parameter in a masked vector, at most: 32 bits, of up to twice as many integers.
_MASKED_BYTES = 8


def participation_plan(
    deployment: Deployment, place: PlaceInPopulation | None = None
) -> messages.ParticipationPlan | None:
    """Say what clients are promised of how often each takes part; None without privacy, which nothing depends on."""
    if not deployment.privacy.is_private:
        return None
    bound = deployment.participation
    rounds, first = deployment.rounds, 0
    if place is not None:
        rounds, bound, first = place.rounds, place.promised, place.first_round
    return messages.ParticipationPlan(
        rounds=rounds,
        max_participations=bound.max_participations,
        min_separation=bound.min_separation,
        first_round=first,
    )


def make_offer(task: Task, folder: Path | None = None, plan: PlanOffer | None = None) -> Offer:
    """Say what clients are offered beside the parameters; what they download lies in the folder, or in memory."""
    deployment = task.deployment
    return Offer(
        program=write_training_program(deployment.model, task.model, deployment.training, deployment.examples),
        vocabulary=ServedArtifact([task.vocabulary], "tokenizer", deployment.chunk_bytes, folder),
        population=deployment.population,
        participation=participation_plan(deployment, task.place),
        plan=plan,
        masked=deployment.aggregation == "secure",
    )


@dataclass(frozen=True)
class ModelDownloads:
    """How models are offered for download."""

    encoding: DownloadEncoding
    chunk_bytes: int  # of the chunks of its download
    folder: Path

    def offer(self, content: Iterable[Buffer]) -> ServedArtifact:
        """Offer a model's bytes until the artifact is withdrawn; raises `DiskError` where there is no room."""
        return ServedArtifact(content, self.encoding, self.chunk_bytes, self.folder)


@dataclass(frozen=True)
class ClientService:
    """The parts of a process that clients talk to; `state` is what must survive it."""

    state: SqlState
    rules: RoundRules
    registry: ClientRegistry
    offer: Offer
    receiver: Receiver
    pacing: PaceSteering
    limiter: RateLimiter
    sums: RoundSums
    downloads: ModelDownloads

    @classmethod
    def make(cls, task: Task, state: SqlState, out: Path, secure: SecureSettings | None = None) -> "ClientService":
        """Make the parts in a folder for uploads and downloads; `secure` where this process alone makes such sums."""
        deployment, rules, compressor = (
            task.deployment,
            task.deployment.round_rules(),
            task.deployment.training.compressor(),
        )
        place = task.place
        # What clients download, and uploads that memory has no room for.
        folder = out / TRANSFERS_FOLDER
        folder.mkdir(exist_ok=True)
        like = jax.eval_shape(task.model.init, jax.random.key(0))
        algorithm = deployment.training.algorithm.make()
        download, update = sent_by_server(algorithm, like), sent_by_client(algorithm, like)
        bounded = algorithm.bounded if deployment.evaluates else None
        downloads = ModelDownloads(deployment.download_encoding, deployment.chunk_bytes, folder)
        room = DiskRoom(folder, _KEPT_MODELS * download_bytes(download) + _KEPT_BYTES)
        buffers = UploadBuffers(min(download_bytes(like), _UPLOADS_IN_MEMORY), room)
        round_bytes = download_bytes(download) + upload_bytes(compressor, update) + len(task.vocabulary)
        if deployment.aggregation == "secure":
            # Steps of a secure sum are several calls; rosters and shares are small beside models of any use.
            round_bytes += _MASKED_BYTES * number_of_coordinates(update) + _ROSTER_BYTES * rules.most_reports
        plan = None
        if task.plan_signer is not None:
            plan = PlanOffer(task.plan, task.plan_signer, deployment.chunk_bytes, folder)
            round_bytes += PLAN_BYTES
        return cls(
            state=state,
            rules=rules,
            registry=ClientRegistry(
                state, deployment.participation, deployment.saved_every, None if place is None else place.other_runs
            ),
            offer=make_offer(task, folder, plan),
            receiver=Receiver(deployment.training.local_training(), deployment.training.length, buffers),
            pacing=PaceSteering(
                rules.to_select, deployment.check_in_seconds, step_seconds=deployment.reporting_seconds
            ),
            limiter=RateLimiter(RateLimits.for_rounds(round_bytes, deployment.check_in_seconds)),
            sums=RoundSums(
                SumSettings(update, compressor, deployment.aggregation_rules(), bounded),
                deployment.robust_rule(),
                rules.most_reports,
                room,
                secure=secure,
            ),
            downloads=downloads,
        )

    def handlers(self, rounds: Rounds) -> ClientHandlers:
        """Make what answers clients; call it in the event loop."""
        return ClientHandlers(rounds, self.offer, self.receiver, pacing=self.pacing, limiter=self.limiter)


def secure_settings(task: Task, state: SqlState, noised: NoisedSums | None) -> SecureSettings | None:
    """Say how a run's sums are secure; None where they are not. `noised` sums are of a run whose clients add noise."""
    if task.deployment.aggregation != "secure":
        return None
    least, save = task.deployment.fewest_reports, SecureAttempts(state.database).save
    return SecureSettings(noised or _exact(task), least, task.authorities, lambda one: with_retries(lambda: save(one)))


def _exact(task: Task) -> ExactSums:
    deployment, training = task.deployment, task.deployment.training
    update = sent_by_client(training.algorithm.make(), jax.eval_shape(task.model.init, jax.random.key(0)))
    assert training.update_clip_norm is not None
    layout = sum_layout(update, training.update_clip_norm, training.local_training(), training.length)
    return ExactSums(update, *fitting(layout, deployment.round_rules().most_reports))
