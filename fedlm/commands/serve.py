"""`fedlm serve`: train one model with clients that dial in."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.run_endings import exit_status_in
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, NotNegative

if TYPE_CHECKING:
    from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics
    from fedlm.fl_core.deployment.operations.overview import Shown
    from fedlm.fl_core.deployment.protocol.interface import Handlers
    from fedlm.fl_core.deployment.roles import Endpoints
    from fedlm.fl_core.deployment.transport.listeners import Listener
    from fedlm.fl_core.rounds.settings import TrainingSettings
    from fedlm.models.base import Model
    from fedlm.models.precision import Precision
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer


_OF_NOISE = ("noise_norm", "signal_to_noise")


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """Train one model with clients that dial in.

    Clients (`fedlm client`) hold their own text and train on it. The server selects some of them for each round, sends
    them the model, and applies the mean of their updates. Rounds, noise, ledger and checkpoints are those of `fedlm
    simulate`. If you stop the server, the same command goes on where it was, and clients carry on. SIGTERM, or Ctrl-C,
    lets the current round end and be saved. A second one ends the process at once, and loses no release either.
    """

    deployment: Deployment
    out: Path
    """Folder of the run."""
    vocabulary: Path
    """Tokenizer: its JSON file, or the folder of a data set that `fedlm data import` wrote."""
    vocabulary_origin: Literal["public"] | None = None
    """Say that the vocabulary is public: made without text of anybody whom the guarantee has to protect. The run's
    statement repeats this. If not given, the record in the data set of --vocabulary counts."""
    heldout: Path | None = None
    """Folder of a data set with the same tokenizer. The model is scored on its held-out clients."""
    heldout_examples: Count = 10_000
    """Held-out examples to score on; always the same ones."""
    address: str = "127.0.0.1:8470"
    """Where to listen: host and port; port 0 takes a free one."""
    keys: Path | None = None
    """Folder of the server's credentials and the list of revoked clients, as `fedlm keys` makes it. Clients need a
    certificate of the same authority (mutual TLS), and its name is their identity."""
    plan_key: Path | None = None
    """Key of `fedlm keys plan`, `plan.key`, which signs plans for clients that have no models (`fedlm-client`). If not
    given, that of --keys, if it has one. Without a key the server turns such clients away."""
    page: Path | None = None
    """Folder of the browser client, `build/page` of clients/javascript. The server shows it at its address."""
    balancers: tuple[str, ...] = ()
    """Addresses, or networks such as 10.0.0.0/28, of balancers that pass TLS through. Each of their connections must
    begin with a head of the PROXY protocol, version 1 or 2, and counts for the address that the head names. The server
    refuses such a head from anybody else, because it is not TLS."""
    tls_proxy: str | None = None
    """A proxy at which the TLS of clients ends: the name in its certificate, as `fedlm keys client` makes one, or on
    the same machine unix:PATH of a socket. The server makes the socket, and only processes of its own user can open it
    (those of the folder's group too, where the folder has the set-group-ID bit). The proxy passes on the certificate
    of each call's client, escaped PEM, in the field fedlm-client-certificate; from anybody else that field is
    refused."""
    max_connections: Count = 10_000
    """Most connections of clients at once, if this process may open so many files. Beyond it the server closes the
    newest connections, and beyond half of it those from one address."""
    insecure: bool = False
    """Speak plain text, and believe the name that a client gives itself. Works on loopback alone."""
    database: str | None = None
    """Database of rounds, check-ins and participation: postgresql://USER@HOST/DATABASE, whose password is in ~/.pgpass
    or the file that PGPASSFILE names, or sqlite:///FILE. If not given, SQLite in the run's folder."""
    role: Literal["all", "coordinator", "aggregator"] = "all"
    """What this process does. `all`: everything. To grow past one process, run one `coordinator`, which no client talks
    to, and several `aggregator`s. These select clients, send them the model and add up their reports. All have the same
    configuration and --database, and each an --out of its own. Aggregators on one machine share --address."""
    operator_address: str | None = None
    """Host and port for operators: a page, `/status.json`, and `/metrics` for Prometheus. If not given, there is none.
    With keys it speaks HTTPS and needs the token of `fedlm keys operator`; insecure it speaks HTTP, for whoever can log
    in to this machine. An aggregator has `/metrics` alone; the rest is the coordinator's."""
    log: Path | None = None
    """Log file. It is put aside at 64 MiB, and four such files are kept. If not given, the log goes to standard
    error."""
    linger_seconds: NotNegative = 30.0
    """Seconds for which the server still tells clients that the run is over, before it ends."""


_ESSENTIALS = (
    *("out", "vocabulary", "heldout", "address", "keys", "insecure", "operator_address", "model", "rounds"),
    *("client_learning_rate", "server_learning_rate", "seed", "cohort_size", "reporting_seconds", "min_separation"),
    *("max_participations", "length", "client_batch_size", "client_epochs", "server_optimizer", "update_clip_norm"),
    *("privacy", "noise_multiplier", "target_epsilon", "delta"),
)


def main(argv: list[str]) -> int:
    """Run `fedlm serve`."""
    command = read_options(ServeCommand, argv, "fedlm serve", essentials=_ESSENTIALS)
    from fedlm.fl_core.deployment.event_log import json_log

    if command.role != "all" and command.database is None:
        raise ConfigurationError(
            f"{setting('role')} is {command.role}, which needs a database that its processes share; give --database"
        )
    if command.role != "all" and command.deployment.aggregation != "mean":
        raise ConfigurationError(f"{setting('aggregation')} needs all reports in one process; leave it, or role, out")
    if command.insecure and command.deployment.aggregation == "secure":
        raise ConfigurationError(
            f"{setting('aggregation')} is secure, which needs clients' certificates; give {setting('keys')}, and leave "
            f"{setting('insecure')} out"
        )
    if command.role == "aggregator" and command.address.rsplit(":", 1)[-1] == "0":
        raise ConfigurationError("aggregators share their port, which cannot be 0; give --address a port")
    endpoints = _endpoints(command)
    with json_log(command.log):
        over = asyncio.run(_process(command, endpoints))
    return exit_status_in(command.out) if over and command.role != "aggregator" else 0


def _process(command: ServeCommand, endpoints: "Endpoints") -> Coroutine[Any, Any, Any]:
    from fedlm.fl_core.deployment.event_log import event
    from fedlm.fl_core.deployment.roles import aggregate, coordinate, serve

    def observe(row: dict[str, Any]) -> None:
        # With the noise's size and a released mean, whoever reads a log could tell who took part.
        event("round_released", **{name: value for name, value in row.items() if name not in _OF_NOISE})

    task = _task(command)
    if command.role == "all":
        return serve(task, command.out, endpoints, observe, database=command.database)
    assert command.database is not None
    if command.role == "coordinator":
        return coordinate(task, command.out, endpoints, observe, database=command.database)
    return aggregate(task, command.out, endpoints, command.database)


def _endpoints(command: ServeCommand) -> "Endpoints":
    from fedlm.fl_core.deployment.roles import Endpoints

    clients = None if command.role == "coordinator" else _clients(command)
    return Endpoints(clients, _operators(command), command.linger_seconds)


def _clients(command: ServeCommand) -> "Callable[[Handlers], Listener]":
    """Choose what listens to clients, and refuse what would let anybody in."""
    from fedlm.fedlm_client.link.credentials import SERVER, read_credentials
    from fedlm.fl_core.deployment.addresses import check_keys, loopback_only
    from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
    from fedlm.fl_core.deployment.transport.http_server import HttpServer
    from fedlm.fl_core.deployment.transport.listeners import ListenOptions
    from fedlm.fl_core.deployment.transport.listening_sockets import socket_path

    shared = command.role == "aggregator"
    limits = ConnectionLimits(command.max_connections, max(1, command.max_connections // 2))
    options = ListenOptions(
        command.address, command.keys, shared, limits, command.balancers, command.tls_proxy, command.page
    )
    check_keys(command.keys, command.insecure, "plain text on loopback")
    if command.keys is None:
        for name in ("balancers", "tls_proxy"):
            if getattr(command, name):
                raise ConfigurationError(
                    f"{setting(name)} passes on clients of other machines, whose plain text others could read; give "
                    f"{setting('keys')} in place of --insecure, or leave {setting(name)} out"
                )
        loopback_only(command.address)
    else:
        read_credentials(command.keys, SERVER)
        socket_path(command.tls_proxy)
    return lambda handlers: HttpServer(handlers, options)


def _operators(command: ServeCommand) -> "Callable[[Shown, CallMetrics], Listener] | None":
    """Choose how operators are shown the server, if at all."""
    from fedlm.fl_core.deployment.addresses import loopback_only
    from fedlm.fl_core.deployment.operations.certificate_days import CertificateDays
    from fedlm.fl_core.deployment.operations.listener import OperatorApplication, OperatorListener
    from fedlm.fl_core.deployment.security.credentials import reloading_tls
    from fedlm.fl_core.deployment.security.operator_access import OPERATOR_TOKEN_FILE, OperatorAccess

    address = command.operator_address
    if address is None:
        return None
    keys, tls, access = command.keys, None, None
    if keys is None:
        loopback_only(address)
    else:
        tls, access = reloading_tls(keys), OperatorAccess(keys / OPERATOR_TOKEN_FILE)

    def listen(shown: "Shown", metrics: "CallMetrics") -> "Listener":
        if keys is not None:
            metrics.registry.register(CertificateDays(keys))
        return OperatorListener(OperatorApplication(shown, metrics, access), address, tls)

    return listen


class ServedModel(NamedTuple):
    """What a server of some settings trains."""

    model: "Model"
    precision: "Precision"
    tokenizer: "Tokenizer"
    content: bytes  # of the tokenizer's file, as clients download it


def served_model(name: str, training: "TrainingSettings", vocabulary: Path) -> ServedModel:
    """Make the model of a deployment.

    Args:
      name: of the model.
      training: the settings.
      vocabulary: the tokenizer's file, or the folder of a data set.

    Raises:
      ConfigurationError: devices do not know such a model or tokenizer, or the model cannot read sequences as long.
    """
    import jax

    from fedlm.fl_core.privacy.origins.vocabulary_origin import tokenizer_file
    from fedlm.fl_core.runs.capabilities.reattention import refuse_reattention
    from fedlm.models.layers.dropout import with_dropout
    from fedlm.models.precision import resolve_precision, with_precision
    from fedlm.models.special_tokens import OWN
    from fedlm.models.training_shapes import check_length
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
    from fedlm.simulations.experiments.federated_models import create_federated_model

    refuse_reattention(name)
    path = tokenizer_file(vocabulary)
    tokenizer = Tokenizer.load(path)
    if tokenizer.special_tokens != OWN:
        raise ConfigurationError(
            f"{path}: has the special tokens {', '.join(tokenizer.special_tokens.names)}, but devices know only "
            f"{', '.join(OWN.names)}; give a tokenizer that fedlm made"
        )
    precision = resolve_precision(training.precision, jax.default_backend())
    model = with_precision(
        with_dropout(create_federated_model(name, tokenizer.vocabulary_size), training.dropout), precision
    )
    check_length(name, model, training.length)
    return ServedModel(model, precision, tokenizer, path.read_bytes())


def _task(command: ServeCommand) -> Any:
    from fedlm.fl_core.deployment.server.task import Task
    from fedlm.simulations.data.vocabulary.given_vocabulary import given_origin

    deployment = command.deployment
    model, precision, tokenizer, content = served_model(deployment.model, deployment.training, command.vocabulary)
    fingerprint = tokenizer.fingerprint
    return Task(
        deployment=deployment,
        model=model,
        vocabulary=content,
        fingerprint=fingerprint,
        score=None if command.heldout is None else _score(command, model, precision, fingerprint),
        vocabulary_origin=given_origin(command.vocabulary, fingerprint, command.vocabulary_origin),
        authorities=_authorities(command),
        plan_signer=_plan_signer(command),
    )


def _authorities(command: ServeCommand) -> Any:
    from fedlm.fedlm_client.link.credentials import AUTHORITY_FILE, read_certificates

    if command.deployment.aggregation != "secure" or command.keys is None:
        return ()
    return tuple(read_certificates(command.keys / AUTHORITY_FILE))


def _plan_signer(command: ServeCommand) -> Any:
    from fedlm.fl_core.deployment.plans.litert.graph import load_schema
    from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner

    path = command.plan_key
    if path is None and command.keys is not None and (command.keys / PLAN_KEY_FILE).exists():
        path = command.keys / PLAN_KEY_FILE
    if path is None:
        return None
    load_schema()
    return PlanSigner(path)


def _score(command: ServeCommand, model: Any, precision: Any, fingerprint: str) -> Any:
    from fedlm.fl_core.rounds.scores import evaluate
    from fedlm.fl_core.runs.round_rows import named_scores
    from fedlm.models.precision import precision_scope
    from fedlm.simulations.data.federated_data import StoredData, device_batches
    from fedlm.simulations.data.store.token_store import TokenStore

    assert command.heldout is not None
    store = TokenStore.open(command.heldout)
    if store.fingerprint != fingerprint:
        raise ConfigurationError(
            f"{command.heldout}: has another tokenizer than {command.vocabulary}; give a data set of the same one"
        )
    data = StoredData(store.split("heldout"), command.deployment.training.length)
    batches = list(device_batches(data, command.deployment.training.length, command.heldout_examples))

    def score(params: Any) -> dict[str, Any]:
        with precision_scope(precision):
            return named_scores(evaluate(model, params, batches), "heldout")

    return score


COMMAND = Command(ServeCommand, main)
