"""One attempt at a round of a new deployment, for tests that send reports to it."""

import asyncio
import contextlib
import dataclasses

import jax
import numpy as np

from fedlm.clients.device.local_training import train_locally
from fedlm.clients.device.server_instructions import plan_of, program_of
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.client_algorithms.interface import Broadcast
from fedlm.fl_core.deployment.protocol.training_program import write_training_program
from fedlm.fl_core.deployment.server.client_service import ClientService, secure_settings
from fedlm.fl_core.deployment.server.local_rounds import LocalRounds
from fedlm.fl_core.deployment.server.training import DeployedTraining
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.updates.update_bytes import pack_parameters
from tests.deployment import small_deployment as small
from tests.support.uploads import UploadInPieces

Status = messages.UploadReply.Status
DEFAULTS = {
    "cohort_size": 2,
    "minimum_reports": 1,
    "over_selection": 2.0,
    "window_seconds": 0.0,
    "selection_seconds": 0.5,
    "reporting_seconds": 0.5,
    "upload_bits": 8,
}


class Round:
    """One attempt at a round, and the clients that talk to it."""

    def __init__(self, service, settings, params):
        self.rounds, self.state, self.settings, self.params = LocalRounds(service), service.state, settings, params
        self.handlers, self.sums, self.downloads = service.handlers(self.rounds), service.sums, service.downloads
        self.collecting = None

    def compile(self):
        """Let no round of a test wait for the compiler."""
        program = write_training_program(self.settings.model, small.task(self.settings).model, self.settings.training)
        self.report(messages.RoundConfiguration(program=program, learning_rate=1.0))
        self.sums.compile(self.plan(0), self.settings.training.update_clip_norm)

    def plan(self, number):
        return RoundPlan(number, np.zeros(0, np.int64), self.settings.seed, self.settings.client_learning_rate)

    async def open(self, number=0):
        plan, parameters = self.plan(number), self.downloads.offer(pack_parameters(self.params))
        collecting = self.rounds.collect(plan, parameters, self.sums.new(plan, self.settings.training.update_clip_norm))
        self.collecting = asyncio.create_task(collecting)
        await asyncio.sleep(0)
        return self

    async def check_in(self, name, protocol=PROTOCOL):
        masked = self.settings.aggregation == "secure"
        request = messages.CheckInRequest(protocol=protocol, client_version="test", secure_sums=masked)
        return await self.handlers.check_in(name, request)

    async def select(self, name):
        reply = await self.check_in(name)
        assert reply.WhichOneof("answer") == "selected", reply
        return reply.selected

    def report(self, configuration, client=3):
        """The header and the bytes of an honest upload."""
        program = program_of(configuration.program, small.ALLOWED, 100)
        plan = plan_of(configuration)
        report = train_locally(
            program, Broadcast(self.params), small.examples_of(client), plan, client=configuration.client_index
        )
        header = messages.UploadHeader(attempt=configuration.attempt, upload_id=b"1", outcome="TRAINED")
        header.size, header.num_examples = len(report.upload), report.num_examples
        header.loss, header.tokens, header.gradient_norm = map(float, report.training)
        return header, report.upload

    async def send(self, name, header, content=b"", chunk=100_000, pause=0.0):
        async def pieces():
            for start in range(0, len(content), chunk):
                await asyncio.sleep(pause)
                yield content[start : start + chunk]

        return await self.handlers.upload(name, UploadInPieces(header, pieces()))


@contextlib.asynccontextmanager
async def in_round(tmp_path, compiled=True, authorities=(), **changes):
    """An open round of a new deployment; one without a report needs nothing compiled. Authorities sign for members."""
    settings, out = small.deployment(**DEFAULTS | changes), tmp_path / "run"
    with RunFolder(out) as folder, contextlib.closing(SqlState(sqlite_url(out / "state.db"))) as state:
        what = dataclasses.replace(small.task(settings), authorities=authorities)
        training = DeployedTraining(what, folder, state)
        service = ClientService.make(what, state, out, secure_settings(what, state, training.noised))
        round_ = Round(service, settings, jax.device_get(training.params))
        if compiled:
            round_.compile()
        async with asyncio.timeout(small.PATIENCE):
            yield await round_.open()
