"""Lies of a server in a secure sum; each is the honest server but for what is written here."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from tests.support import page_protocol as page
from tests.support import secure_cohorts as cohorts
from tests.support.hostile_sums import HostileServer

ORDER = int("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551", 16)  # of P-256


class Honest(HostileServer):
    """No lie: it reads what it is given."""


class TwoRosters(HostileServer):
    """Half of the members see another key of the last one."""

    def roster(self, one):
        name, rules, members = super().roster(one)
        other = cohorts.member(self.count - 1, name=self.name).advertise()
        return [name, rules, [*members[:-1], list(other)] if one % 2 and one != self.count - 1 else members]


class SwappedKeys(HostileServer):
    """Everybody but the victim has keys of the server's, under the signatures of the real ones."""

    def roster(self, one):
        name, rules, members = super().roster(one)
        mine = self.traitors[0].advertisement[1:3]
        return [name, rules, [m if at == one else [m[0], *mine, *m[3:]] for at, m in enumerate(members)]]


class ServersAsMembers(HostileServer):
    """The traitors have certificates of servers, as every aggregator has one."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for one in self.traitors:
            identity = cohorts.server_identity(f"aggregator{one}")
            self.traitors[one] = page.Traitor(identity, list(self.name), np.random.default_rng(one))


class LowerFloors(HostileServer):
    """A threshold that two stories reach."""

    def roster(self, one):
        name, rules, members = super().roster(one)
        return [name, [rules[0], rules[1] - 1, *rules[2:]], members]


class OtherModels(HostileServer):
    """Half of the members have trained from another model, and are told that all have."""

    def client(self, one, floors):
        name = self.name._replace(request_digest=b"dead layers".ljust(32)) if one % 2 else self.name
        return cohorts.member(one, name=name, floors=floors)

    def roster(self, one):
        _, rules, members = super().roster(one)
        return [list(self.members[one]._name), rules, members]


class BothShares(HostileServer):
    """Half of the members are told that the last one survives, half that it has dropped out."""

    def survivors(self, one):
        last = self.count - 1
        return [other for other in range(self.count) if other != last or one in (last, *self.honest[2::2])]


class ManyStories(HostileServer):
    """Each member is told another story of survivors, so that all masks but those within a group become known."""

    group = (22, 23)

    def between(self, step):
        super().between(step)
        if step == "survivors":
            self.dead = self._stories({one: self.neighbours(one) for one in self.honest})

    def _stories(self, near):
        """Say who is told of whose death: as a flow from the dead to those that tell their keys."""
        rim = set().union(*(near[one] for one in self.group)) - set(self.group) - self.traitors.keys()
        source, sink, least = 2 * self.count, 2 * self.count + 1, self.rules.threshold
        capacity = np.zeros((sink + 1, sink + 1), np.int32)
        for dead in rim:
            capacity[source, dead] = least - len(near[dead] & self.traitors.keys())
            for one in near[dead] & set(self.honest):
                capacity[dead, self.count + one] = 1
        for one in self.honest:
            capacity[self.count + one, sink] = self.rules.neighbours - least
        found = maximum_flow(csr_matrix(capacity), source, sink)
        assert found.flow_value == capacity[source].sum()
        flow = found.flow.toarray()
        return {one: {dead for dead in rim if flow[dead, self.count + one] > 0} for one in self.honest}

    def survivors(self, one):
        return sorted(set(range(self.count)) - self.dead[one])


class OneVictim(ManyStories):
    """The group is a single member among few neighbours."""

    group = (99,)


class TwoArcs(HostileServer):
    """Each half of a ring is told that some in its middle have dropped out, so that a sum is without either."""

    dead = 7

    def between(self, step):
        super().between(step)
        if step == "survivors":
            ring, half = self.ring(self.count - 1), self.count // 2
            arcs = [[one for one in part if one in self.honest] for part in (ring[:half], ring[half:])]
            middles = [(len(arc) - self.dead) // 2 for arc in arcs]
            gone = [arc[start : start + self.dead] for arc, start in zip(arcs, middles, strict=True)]
            self.group = frozenset(self.honest) - {one for arc in gone for one in arc}
            self.gone = {one: gone[(one in arcs[1]) != (one in gone[0] + gone[1])] for one in self.honest}

    def survivors(self, one):
        return sorted(set(range(self.count)) - set(self.gone[one]))


class FewDealt(HostileServer):
    """A group is told that nobody has dealt but itself, the traitors and those that are said to drop out later."""

    group, dead = (22, 23), tuple(range(8, 15))

    def dealt(self, one):
        few = one in self.group
        return sorted({*self.group, *self.dead, *self.traitors}) if few else list(range(self.count))

    def survivors(self, one):
        return sorted(set(range(self.count)) - set(self.dead) | {one})

    def signatures(self, one):
        return {other: b"" for other in range(self.count)} | super().signatures(one)


class LateUpload(HostileServer):
    """The last member is said to have dropped out, but its vector has arrived."""

    def survivors(self, one):
        return list(range(self.count - 1)) if one != self.count - 1 else list(range(self.count))


class NoSurvivors(HostileServer):
    """Survivors that never dealt, which nobody is."""

    def survivors(self, one):
        return [*super().survivors(one), self.count]


class FewSurvivors(HostileServer):
    """Nobody but the victim and the traitors survives."""

    def survivors(self, one):
        return sorted({one, *self.traitors})


class Reflection(HostileServer):
    """Each member gets its own sealed shares back, as those of its neighbours."""

    def sealed_for(self, sender, one):
        return dict(page.decode(self.heard[one, "shares"])[0][0])[sender]


class Replay(HostileServer):
    """Sealed shares are those of the attempt before."""

    before = None

    def sealed_for(self, sender, one):
        return self.before.sealed_for(sender, one)


class ReplayedKeys(Replay):
    """The roster is that of the attempt before, but for the member's own keys and the name."""

    def roster(self, one):
        name, rules, members = super().roster(one)
        return [name, rules, [m if at == one else self.before.advertisements[at] for at, m in enumerate(members)]]


class ReplayedAgreement(HostileServer):
    """Members sign in one attempt, and these signatures are shown in the next."""

    before = None

    def signatures(self, one):
        return self.before.signatures(one)


class LowOrder(HostileServer):
    """A traitor's keys give a secret that everybody knows."""

    key = bytes(32)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        traitor = self.traitors[0]
        keys = [self.key, self.traitors[0].advertisement[2]]
        traitor.advertisement = [
            traitor.advertisement[0],
            *keys,
            b"",
            page.sign(traitor.identity, "keys", *self.name, *keys, b""),
        ]


class TwoSpellings(LowOrder):
    """A traitor's key is another's, written in a second way."""

    def __init__(self, *arguments):
        other = arguments[2] - 1
        drawn = page.Traitor(cohorts.identity(f"client{other}"), list(cohorts.NAME), np.random.default_rng(1))
        key = drawn.advertisement[1]
        self.key = key[:-1] + bytes([key[-1] | 128])
        super().__init__(*arguments)


class OtherSignatures(HostileServer):
    """Half of the members see the last one's keys under the signature's twin, which verifies as well."""

    def roster(self, one):
        name, rules, members = super().roster(one)
        r, s = decode_dss_signature(members[-1][-1])
        twin = [*members[-1][:-1], encode_dss_signature(r, ORDER - s)]
        return [name, rules, [*members[:-1], twin] if one % 2 and one != self.count - 1 else members]


class ConfusedSteps(HostileServer):
    """Answers to one step are given to another."""

    def reply(self, one, step):
        said = super().reply(one, step)
        return page.encode(self.told[one, "keys"]) if step == "shares" else said
