"""Cohorts for secure sums in tests: their certificates, and an honest attempt with members that drop out."""

import datetime
import functools

import numpy as np
import sqlalchemy as sql
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlm.fedlm_client.secure_aggregation import masks, wire
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fedlm_client.secure_aggregation.keys import AttemptName, Identity
from fedlm.fedlm_client.secure_aggregation.member import Member
from fedlm.fedlm_client.secure_aggregation.roster import Parameters
from fedlm.fl_core.deployment.secure_aggregation.attempt import SecureAttempt
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from fedlm.fl_core.deployment.state.tables import SECURE_ATTEMPTS

NAME = AttemptName("run", 3, b"attempt", b"m" * 32)
FLOORS = Floors(least_cohort=3, corrupt_share=0.0, dropped_share=0.0)


def certificate(name, key, issuer, issuer_key, use=ExtendedKeyUsageOID.CLIENT_AUTH, *, hours=24.0):
    now = datetime.datetime.now(datetime.UTC)
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(named if issuer is None else issuer.subject, named, key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(
        now + datetime.timedelta(hours=hours)
    )
    return builder.sign(issuer_key, hashes.SHA256())


@functools.cache
def authority(name):
    key = ec.generate_private_key(ec.SECP256R1())
    return certificate(name, key, None, key), key


@functools.cache
def identity(name, of="ours"):
    key = ec.generate_private_key(ec.SECP256R1())
    return Identity(certificate(name, key, *authority(of)), key)


@functools.cache
def server_identity(name):
    """Give who has a certificate of a server, or of an aggregator."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Identity(certificate(name, key, *authority("ours"), ExtendedKeyUsageOID.SERVER_AUTH), key)


def rules(clients, *, graph=None, **others):
    """Rules for so many clients that add integers up to 500."""
    neighbours, threshold = graph or choose_graph(clients, Strangers(0.0, 0.2 if clients < 64 else 0.1))
    fields = {"least_cohort": 3, "bits": 20, "length": 40, "largest": 500, "clip_norm": 1.0, "scale": 1.0}
    fields |= {"noise": "", "variance": 0.0, "rotation": b""}
    return Parameters(neighbours, threshold, **(fields | others))


def member(index, *, name=NAME, floors=FLOORS, **others):
    return Member(name, identity(f"client{index}"), floors, [authority("ours")[0]], **others)


def kept_attempts(kept):
    """What a database knows of attempts: phase, whether their rounds are charged, and why it was abandoned."""
    with kept._database.reading() as connection:
        rows = connection.execute(sql.select(SECURE_ATTEMPTS))
        return {bytes.fromhex(row.attempt): (row.phase, row.charged, row.reason) for row in rows}


def vectors(count, parameters, seed=0):
    drawn = np.random.default_rng(seed)
    return drawn.integers(-parameters.largest, parameters.largest + 1, (count, parameters.length))


class Cohort:
    """Honest members and a server, up to some step."""

    def __init__(self, count, parameters=None, **others):
        self.parameters = parameters or rules(count)
        self.members = [member(index, **others) for index in range(count)]
        self.integers = vectors(count, self.parameters)
        self.attempt = SecureAttempt(self.members[0]._name)
        for index, one in enumerate(self.members):
            sent = wire.read_advertisement(wire.write_advertisement(one.advertise()))
            self.attempt.advertise(f"client{index}", sent, [authority("ours")[0]])
        self.roster = self.attempt.freeze(lambda count: self.parameters)
        self.total = self.attempt.empty_sum()
        self.uploads = {}

    def deal(self, without=()):
        sent = wire.read_roster(wire.write_roster(self.roster))
        for index, one in enumerate(self.members):
            if index not in without:
                self.attempt.deal(index, wire.read_dealing(wire.write_dealing(one.deal(sent))))
        self.attempt.close_dealing()
        return self

    def mask(self, without=()):
        for index in self.attempt.dealings.keys() - set(without):
            dealt = wire.read_dealt(wire.write_dealt(self.attempt.dealt_for(index)))
            self.uploads[index] = self.members[index].mask(dealt, self.integers[index])
        for index, upload in self.uploads.items():
            self.attempt.merge(self.total, frozenset([index]), self.unpacked(upload))
        self.attempt.announce()
        return self

    def agree(self, without=()):
        asked = wire.read_members(wire.write_members(self.attempt.survivors))
        for index in self.attempt.survivors - set(without):
            self.attempt.agree(index, self.members[index].agree(asked))
        self.attempt.close_agreeing()
        return self

    def signatures(self, index):
        return wire.read_signatures(wire.write_signatures(self.attempt.signatures_for(index)))

    def reveal(self, without=()):
        if self.attempt.phase == "agreeing":
            self.agree(without)
        for index in self.attempt.signatures.keys() - set(without):
            revealed = self.members[index].reveal(self.signatures(index))
            self.attempt.reveal(index, wire.read_revealed(wire.write_revealed(revealed)))
        return self

    def finish(self):
        self.attempt.finish(self.total)
        return self.total

    def unpacked(self, upload):
        return masks.unpacked(upload, self.parameters.length, self.parameters.bits)

    def plain(self):
        """Add up what the survivors sent, in the clear."""
        total = self.integers[sorted(self.attempt.survivors)].sum(0)
        return (total % (1 << self.parameters.bits)).astype(self.total.dtype)
