"""Crowds of strangers at a server in a process of its own: its rounds go on, its files and its log stay bounded."""

import asyncio
import contextlib
import json
import resource
import socket
import time

from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.event_log import json_log
from fedlm.fl_core.deployment.roles import serve
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport import connection_limits
from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits, Connections, network_of
from fedlm.fl_core.deployment.transport.http_server import HttpServer
from fedlm.fl_core.deployment.transport.listeners import ListenOptions
from tests.deployment import small_deployment as small
from tests.support.processes import find_free_port

ROUNDS = 2


def serve_with_few_files(keys, out, port, log, files):
    """Run a server until its end, in a process that may open so many files, and begins with fewer."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 300), files))
    settings = small.deployment(rounds=ROUNDS, cohort_size=2, minimum_reports=2)
    options = ListenOptions(f"127.0.0.1:{port}", keys)
    endpoints = Endpoints(lambda handlers: HttpServer(handlers, options), linger=2.0)
    with json_log(log):
        asyncio.run(serve(small.task(settings), out, endpoints, small.log_release))


@contextlib.contextmanager
def strangers(count, port):
    """Connections of one other address that say nothing, many more than a server may have."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            one = opened.enter_context(socket.socket())
            one.bind(("127.0.0.2", 0))
            one.settimeout(20)
            one.connect(("127.0.0.1", port))
        yield


def until_listening(process, log):
    end = time.monotonic() + small.PATIENCE
    while not (log.exists() and '"listening"' in log.read_text()):
        assert process.is_alive()
        assert time.monotonic() < end
        time.sleep(0.05)


async def goes_on(tmp_path, keys, count, files):
    """Say what a server logs while strangers crowd in and honest clients take part in all its rounds."""
    port, log = find_free_port(), tmp_path / "log"
    process = small.in_process(serve_with_few_files, keys, tmp_path / "run", port, log, files)
    try:
        until_listening(process, log)
        with strangers(count, port):
            names = [None if keys is None else Authority(keys).make_client(f"client{one}") for one in range(2)]
            clients = [small.make_client(port, tmp_path, one, names[one]) for one in range(2)]
            async with asyncio.timeout(small.PATIENCE), small.running(clients):
                while process.is_alive():
                    await asyncio.sleep(0.1)
        process.join(small.PATIENCE)
        assert process.exitcode == 0, log.read_text()[-2000:]
    finally:
        process.kill()
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_more_strangers_than_files_do_not_end_a_server(tmp_path):
    logged = await goes_on(tmp_path, None, count=900, files=700)
    assert sum(line["event"] == "round_released" for line in logged) == ROUNDS
    assert any(line["event"] == "fewer_connections" and line["allowed"] < 700 for line in logged)
    shut = [line for line in logged if line["event"] == "connection_shut"]
    assert {line["too_many_of"] for line in shut} == {"address"}
    assert sum(1 + line.get("held_back", 0) for line in shut) >= 600
    assert len(shut) < 30


def test_connections_are_counted_by_network_and_given_back(monkeypatch):
    told = []
    monkeypatch.setattr(connection_limits, "warn", lambda name, **fields: told.append(fields))
    connections = Connections(ConnectionLimits(in_all=3, of_address=2, of_identity=1))

    @contextlib.contextmanager
    def connected(host):
        with connections.connected(host, lambda: None) as place:
            if place is not None:
                connections.know(place)
            yield place

    with connected("10.0.0.1") as one, connected("10.0.0.1") as two, connected("10.0.0.1") as three:
        assert one is not None and two is not None and three is None  # noqa: PT018
        with connected("10.0.0.2") as four, connected("10.0.0.3") as five:
            assert four is not None and five is None  # noqa: PT018
    with connected("10.0.0.1") as again, connections.identified("ann") as ann, connections.identified("ann") as twice:
        assert (again is not None, ann, twice) == (True, True, False)
    assert told == [
        {"too_many_of": "address", "address": "10.0.0.1", "most": 2},
        {"too_many_of": "all", "most": 3},
        {"too_many_of": "client", "client": "ann", "most": 1},
    ]
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") == "2001:db8::/64"
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"
