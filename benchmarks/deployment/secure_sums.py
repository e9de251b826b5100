"""What a secure sum costs a client and a server in CPU seconds, beside what its ciphers cost and Flower's SecAgg+.

A client checks the roster, deals, masks and packs its vector, signs and reveals. A server unpacks and adds the
survivors' vectors, recovers secrets from shares and takes the masks off, by all cores where these are many; `elapsed`
are the seconds that this took. It holds the sum and one vector. `limit` is the same number of streams and vectors, each
added to a block that stays in the cache, and for a client the roster's signatures, for a server its secrets. Flower's
core is timed on three masks of the same length and is given for as many as here.

    python -m benchmarks.deployment.secure_sums
    python -m benchmarks.deployment.secure_sums --clients 100 --parameters 1000000

`make bench-peers` makes Flower's environment; without it, its numbers are left out. Run it when nothing else runs.
"""

import argparse
import datetime
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.machine import describe_machine
from fedlm.fedlm_client.secure_aggregation import masks, shamir
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fedlm_client.secure_aggregation.keys import (
    AttemptName,
    Identity,
    check_advertisement,
    public_of,
    sealed,
    sealing_info,
    shared_key,
    story_of,
)
from fedlm.fedlm_client.secure_aggregation.member import Dealt, Member, commitment
from fedlm.fedlm_client.secure_aggregation.roster import Parameters, Roster
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.deployment.secure_aggregation import recovery
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from fedlm.fl_core.deployment.security.certificates import new_key, sign_authority, sign_client

RESULTS = Path(__file__).parent / "results"
PEERS = Path(__file__).parents[1] / "simulation/peers"
NAME = AttemptName("benchmark", 0, b"attempt", bytes(32))
BITS, LARGEST, DAYS = 32, 1 << 16, 2


class Seconds(NamedTuple):
    """What some work took."""

    processors: float
    elapsed: float

    def after(self, other: "Seconds") -> "Seconds":
        """Add what was done before."""
        return Seconds(self.processors + other.processors, self.elapsed + other.elapsed)


class Cohort(NamedTuple):
    """Clients with their keys, the first of which is a real member, and their roster."""

    authority: x509.Certificate
    identities: list[Identity]
    member: Member
    private: list[X25519PrivateKey]  # sealing and masking keys of all others in one
    roster: Roster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1000], help="of a cohort")
    parser.add_argument("--parameters", nargs="+", type=int, default=[1_000_000, 9_000_000], help="of the model")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for length in arguments.parameters:
        rates, flower = bare_rates(length), flower_seconds(length)
        for clients in arguments.clients:
            cohort = make_cohort(clients, length)
            rows += measure(cohort, rates, flower)
            print(json.dumps(rows[-3:], indent=1), flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    found = {"machine": describe_machine(), "unit": "CPU seconds", "rows": rows}
    write_atomically(arguments.results / "secure_sums.json", json.dumps(found, indent=1) + "\n")


def measure(cohort: Cohort, rates: dict[str, float], flower: dict[str, float]) -> list[dict[str, Any]]:
    """Measure a client, and servers without and with a tenth of the clients that drop out.

    Args:
      cohort: of clients.
      rates: CPU seconds of a bare mask and a bare addition.
      flower: the same of Flower's core; empty without it.
    """
    count, rules = len(cohort.identities), cohort.roster.parameters
    check = timed(lambda: [check_advertisement(NAME, one, [cohort.authority], now()) for one in cohort.roster.members])
    everybody = range(count)
    story = story_of(cohort.roster.digest, everybody, everybody)
    signatures = {one: cohort.identities[one].sign_story(story) for one in everybody}
    # The process remembers whose advertisements it has checked.
    client = timed(lambda: client_round(cohort, signatures)).after(check)
    secret = secret_seconds(rules)
    work = [("client", 0, rules.neighbours + 1, 0, client, check.processors)]
    for dropped in (0, count // 10):
        found, streams = server_round(cohort, dropped)
        work.append(("server", dropped, streams, count - dropped, found, count * secret))
    rows = []
    for side, dropped, streams, vectors, seconds, other in work:
        limit = streams * rates["mask"] + vectors * rates["add"] + other
        row = {"side": side, "clients": count, "parameters": rules.length, "dropped": dropped, "streams": streams}
        row |= {"seconds": seconds.processors, "elapsed": seconds.elapsed}
        row |= {"limit": limit, "over_limit": seconds.processors / limit}
        if flower:
            row["flower"] = streams * flower["mask"] + vectors * flower["add"]
        rows.append(row)
    return rows


def make_cohort(count: int, length: int) -> Cohort:
    """Make certificates, keys and a roster of so many clients."""
    key = new_key()
    authority = sign_authority(key, DAYS)
    identities = [
        Identity(sign_client(authority, key, own.public_key(), f"client{number}", days=DAYS), own)
        for number, own in enumerate(new_key() for _ in range(count))
    ]
    # Both keys of a client are different, as members ask.
    private = [X25519PrivateKey.generate() for _ in range(2 * count)]
    member = Member(NAME, identities[0], Floors(), [authority])
    others = [
        identities[one].advertise(NAME, public_of(private[2 * one]), public_of(private[2 * one + 1]))
        for one in range(1, count)
    ]
    graph = choose_graph(count, Strangers())
    rules = Parameters(*graph, 10, BITS, length, LARGEST, 1.0, 1.0, "", 0.0, b"")
    return Cohort(authority, identities, member, private, Roster(NAME, rules, (member.advertise(), *others)))


def client_round(cohort: Cohort, signatures: dict[int, bytes]) -> None:
    """Take part as the first client, with neighbours that say what honest ones do, of whom all sign."""
    member, roster = cohort.member, cohort.roster
    member.deal(roster)
    sent = {}
    for one in roster.neighbours(0):
        info = sealing_info(roster.digest, one, 0)
        key = shared_key(cohort.private[2 * one], roster.members[0].sealing_key, info)
        sent[one] = sealed(key, bytes(2 * shamir.SHARE_BYTES), info)
    everybody = frozenset(range(len(roster.members)))
    member.mask(Dealt(everybody, sent), np.ones(roster.parameters.length, np.int64))
    member.agree(everybody)
    member.reveal(signatures)


def server_round(cohort: Cohort, dropped: int) -> tuple[Seconds, int]:
    """Time the server's work of a sum from which the last clients have dropped out, and count its streams."""
    roster, count = cohort.roster, len(cohort.identities)
    rules, alive = roster.parameters, frozenset(range(count - dropped))
    near = {one: sorted(roster.neighbours(one) & alive) for one in range(count)}
    own = {one: secrets.token_bytes(32) for one in alive}

    def shares(secret: bytes, one: int) -> dict[int, bytes]:
        places = shamir.split(secret, rules.threshold, [other + 1 for other in near[one]])
        return {place - 1: share for place, share in places.items()}

    given = {one: shares(secret, one) for one, secret in own.items()}
    keys = {one: shares(cohort.private[2 * one + 1].private_bytes_raw(), one) for one in range(len(alive), count)}
    commitments = {one: commitment(roster.digest, one, secret) for one, secret in own.items()}
    content = masks.packed(np.ones(rules.length, masks.word(rules.bits)), rules.bits)
    total = np.zeros(rules.length, masks.word(rules.bits))

    def work() -> None:
        for _ in alive:
            np.add(total, masks.unpacked(content, rules.length, rules.bits), out=total)
        recovery.remove_masks(total, roster, recovery.unmasking(roster, commitments, (given, keys)))

    return timed(work), len(alive) + sum(len(near[one]) for one in keys)


def bare_rates(length: int) -> dict[str, float]:
    """Time a stream that is added to one block again and again, and a vector that is added to one that is there."""
    block, vectors = np.zeros(masks.BLOCK, masks.word(BITS)), np.ones((2, length), masks.word(BITS))
    blocks = 64
    mask = timed(lambda: [masks.add_mask(block, bytes(32), 1) for _ in range(blocks)])
    add = timed(lambda: [np.add(vectors[0], vectors[1], out=vectors[0]) for _ in range(5)])
    return {"mask": mask.processors / blocks / len(block) * length, "add": add.processors / 5}


def secret_seconds(rules: Parameters) -> float:
    """Time how a secret is put together and all its shares are checked, which are right."""
    times = 10
    # Each at other places, as neighbours are others.
    shares = [
        shamir.split(bytes(32), rules.threshold, range(one, one + rules.neighbours)) for one in range(1, times + 1)
    ]
    return timed(lambda: [recovery.recover(one, rules.threshold, bool) for one in shares]).processors / times


def flower_seconds(length: int) -> dict[str, float]:
    """Time a mask and an addition of Flower's core, in its own environment; nothing where there is none."""
    python = PEERS / ".venv/bin/python"
    if not python.exists():
        return {}
    words = [str(python), str(PEERS / "flower_masks.py"), str(length), str(BITS)]
    return json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)


def timed(work: Callable[[], object]) -> Seconds:
    """Time this process and those that it has started."""

    def now() -> Seconds:
        return Seconds(time.process_time() + sum(os.times()[2:4]), time.perf_counter())

    before = now()
    work()
    after = now()
    return Seconds(after.processors - before.processors, after.elapsed - before.elapsed)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


if __name__ == "__main__":
    main()
