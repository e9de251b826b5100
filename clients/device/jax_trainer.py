"""Trains fedlm's models by JAX, as a server says; who trains for `fedlm client` and for fleets."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from fedlm.clients.device.kept_state import KeptState
from fedlm.clients.device.local_training import ClientProgram, ClientReport, train_locally
from fedlm.clients.device.server_instructions import (
    ANYTHING,
    AllowedPrograms,
    Encode,
    ReadVocabulary,
    encode,
    plan_of,
    program_of,
)
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.client import VERSION
from fedlm.fedlm_client.errors import ClientError
from fedlm.fedlm_client.text.example_store import Examples
from fedlm.fedlm_client.training import EndedError, Fetch, Round, Update, adds_zeros
from fedlm.fl_core.client_algorithms.interface import kept_by_client, sent_by_client, sent_by_server
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS
from fedlm.fl_core.deployment.protocol.training_program import read_cut
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.updates.update_bytes import WireError, unpack_parameters, upload_bytes, upload_header
from fedlm.models.precision import precision_scope, resolve_precision
from fedlm.models.registry import UnknownModelError

_Outcome = messages.UploadHeader


class _Warm(NamedTuple):
    """What is kept from round to round."""

    program: messages.TrainingProgram
    vocabulary: bytes
    examples: object
    runs: ClientProgram
    sequences: np.ndarray
    num_cut: int  # examples that the text was cut into, some of which may have no token


class JaxTrainer:
    """A `fedlm.fedlm_client.training.Trainer` that has the server's model."""

    def __init__(
        self,
        text: Examples,
        read_vocabulary: ReadVocabulary,
        allowed: AllowedPrograms = ANYTHING,
        kept: KeptState | None = None,
    ):
        """Prepare to train on a text, which what the server sends makes tokens of. What a client algorithm keeps on the
        device lies in `kept`; it lasts as long as the trainer where None."""
        self.text, self._read_vocabulary, self._allowed = text, read_vocabulary, allowed
        self._kept = KeptState() if kept is None else kept
        self._encoders: dict[bytes, Encode] = {}
        self._warm: _Warm | None = None

    def introduce(self) -> messages.CheckInRequest:
        algorithms = self._allowed.algorithms or CLIENT_ALGORITHMS
        software = f"fedlm {VERSION}"
        return messages.CheckInRequest(client_version=software, models=self._allowed.models, algorithms=algorithms)

    def depends_on(self, asked: messages.RoundConfiguration, examples: object) -> object:
        kept = self._kept.name(asked)
        return examples if kept is None else (examples, kept)

    async def fetch(self, asked: messages.RoundConfiguration, fetch: Fetch) -> bytearray:
        """Fetch the tokenizer, where it is not there yet, and give the server's parameters."""
        digest = asked.vocabulary.digest
        if digest not in self._encoders:
            content = bytes(await fetch(asked.vocabulary))
            try:
                self._encoders = {digest: self._read_vocabulary(content)}
            except (UserError, ValueError, RecursionError) as error:
                raise ClientError(
                    "this client cannot do what the server asks for: it cannot read the server's tokenizer, which may "
                    "come from another version of this software"
                ) from error
        return await fetch(asked.parameters)

    def train(self, of_round: Round, fetched: bytearray) -> Update:
        try:
            with _what_it_cannot_do():
                report = self._train(of_round, fetched)
            if report is None:
                raise EndedError(_Outcome.NOT_FINITE)
        except EndedError as ended:
            if adds_zeros(ended, of_round.asked):
                return self._zeros(of_round)
            raise
        return Update(report.upload, report.num_examples, *map(float, report.training))

    def close(self) -> None:
        """There is nothing to free."""

    def _train(self, of_round: Round, content: bytearray) -> ClientReport | None:
        asked, work = of_round.asked, self._prepare(of_round)
        # The server's tokenizer chooses in which examples there is a token, and its model how training ends.
        if work.num_cut:
            of_round.tell()
        if not len(work.sequences):
            raise EndedError(_Outcome.NO_EXAMPLES)
        model, algorithm = work.runs.model, work.runs.training.algorithm
        params = jax.eval_shape(model.init, jax.random.key(0))
        own = self._kept.read(asked, kept_by_client(algorithm, params))
        server = unpack_parameters(content, asked.parameters.encoding, sent_by_server(algorithm, params))
        precision = resolve_precision(asked.program.precision, jax.default_backend())  # type: ignore[arg-type]
        with precision_scope(precision):
            report = train_locally(
                work.runs,
                server,
                work.sequences,
                plan_of(asked),
                client=asked.client_index,
                before_step=of_round.before_step,
                kept=own,
            )
        if report is not None:
            self._kept.write(asked, report.kept)
        return report

    def _zeros(self, of_round: Round) -> Update:
        """Make what a client adds its noise to that has nothing else to add, so that nobody learns which one has."""
        runs = self._prepare(of_round).runs
        like = sent_by_client(runs.training.algorithm, jax.eval_shape(runs.model.init, jax.random.key(0)))
        return Update.zeros(upload_header(runs.compressor, like), upload_bytes(runs.compressor, like))

    def _prepare(self, of_round: Round) -> _Warm:
        program, vocabulary = of_round.asked.program, of_round.asked.vocabulary.digest
        if self._warm is None or self._warm[:3] != (program, vocabulary, of_round.examples):
            runs = program_of(program, self._allowed, of_round.max_batches)
            cut = self.text.examples(read_cut(program))
            sequences = encode(cut, self._encoders[vocabulary], program.length)
            self._warm = _Warm(program, vocabulary, of_round.examples, runs, sequences, len(cut))
        return self._warm


@contextlib.contextmanager
def _what_it_cannot_do() -> Iterator[None]:
    try:
        yield
    except (UnknownModelError, WireError) as error:
        raise ClientError(f"this client cannot do what the server asks for: {error}") from error
