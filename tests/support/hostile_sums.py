"""A server that lies in a secure sum, with members that work with it, and what it finds out of the honest ones."""

import asyncio

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, take_part
from tests.support import page_protocol as page
from tests.support import secure_cohorts as cohorts


class HostileServer:
    """It follows the protocol; a lie is a method of its own.

    Members are honest from the number of traitors on; `real` clients hold `integers`, and see bytes alone. `gone` says
    which of them drop out, and before which message.
    """

    def __init__(self, rules, count, traitors, floors, name=cohorts.NAME):
        drawn = np.random.default_rng(count)
        self.rules, self.name, self.count = rules, name, count
        self.traitors = {
            one: page.Traitor(cohorts.identity(f"client{one}"), list(name), drawn) for one in range(traitors)
        }
        self.honest = range(traitors, count)
        self.integers = cohorts.vectors(count, rules, count)
        self.members = {one: self.client(one, floors) for one in self.honest}
        self.told, self.heard, self.replies, self.refusals = {}, {}, {}, {}
        self.gone = {}

    def client(self, one, floors):
        return cohorts.member(one, name=self.name, floors=floors)

    # What it says to a member.

    def roster(self, one):
        return [list(self.name), list(self.rules), self.advertisements]

    def dealt(self, one):
        return sorted(set(self.traitors) | {other for other, step in self.heard if step == "shares"})

    def sealed_for(self, sender, one):
        if sender in self.traitors:
            return self.traitors[sender].seal(self.digest(one), (sender, one), self.keys(one)[0])
        return dict(page.decode(self.heard[sender, "shares"])[0][0])[one]

    def survivors(self, one):
        return sorted(set(self.traitors) | {other for other, step in self.heard if step == "vector"})

    def signatures(self, one):
        story = (self.digest(one), self.told[one, "shares"][0], self.told[one, "survivors"])
        signed = {t: page.sign(traitor.identity, "survivors", *story) for t, traitor in self.traitors.items()}
        return signed | {other: content for (other, step), content in self.heard.items() if step == "agree"}

    # What it is and does.

    def digest(self, one):
        return page.hashed("roster", *self.told[one, "keys"])

    def keys(self, one):
        return self.advertisements[one][1:3]

    def ring(self, one):
        digest = self.digest(one)
        return sorted(range(self.count), key=lambda index: page.hashed("ring", digest, index))

    def neighbours(self, one):
        k = self.rules.neighbours
        if k == self.count - 1:
            return set(range(self.count)) - {one}
        ring = self.ring(one)
        place = ring.index(one)
        return {ring[(place + step) % self.count] for step in range(-(k // 2), k // 2 + 1)} - {one}

    def reply(self, one, step):
        if step == "keys":
            said = self.roster(one)
        elif step == "shares":
            members = self.dealt(one)
            self.told[one, step] = (members, [])
            near = sorted(self.neighbours(one) & set(members))
            said = (members, [(other, self.sealed_for(other, one)) for other in near])
        elif step == "survivors":
            said = self.survivors(one)
        elif step == "agree":
            said = sorted(self.signatures(one).items())
        else:
            said = []
        self.told[one, step] = said
        return page.encode(said)

    def between(self, step):
        """Do what is due when all have answered a step."""
        if step == "keys":
            read = {one: page.decode(self.heard[one, "keys"])[0] for one in self.honest}
            self.advertisements = [read.get(one) or self.traitors[one].advertisement for one in range(self.count)]

    async def _run(self):
        loop = asyncio.get_running_loop()

        async def ask(one, step, content):
            if self.gone.get(one) == step:
                raise UnsafeSumError("this member has dropped out")
            self.heard[one, step] = content
            if step == "refuse":
                return Reply("over")
            self.replies[one] = (step, loop.create_future())
            return Reply("ready", await self.replies[one][1])

        async def take(one, member):
            try:
                await take_part(member, self.integers[one], lambda *asked: ask(one, *asked), lambda: asyncio.sleep(0))
            except UnsafeSumError as error:
                self.refusals[one] = str(error)

        tasks = [asyncio.create_task(take(*item)) for item in self.members.items()]
        for step in ("keys", "shares", "vector", "survivors", "agree", "reveal"):
            for _ in range(3):
                await asyncio.sleep(0)
            self.between(step)
            for one, (asked, future) in sorted(self.replies.items()):
                if asked == step and not future.done():
                    future.set_result(self.reply(one, step))
        await asyncio.gather(*tasks)

    def attack(self):
        """Talk to all honest members, and give the sums that are learned, by whose they are: integers mod 2^b."""
        asyncio.run(self._run())
        return self.learned()

    def secrets(self):
        """Put all shares together that were sent or are known: own masks, and masking keys."""
        own, keys = ({one: {} for one in self.honest} for _ in range(2))
        for one in self.honest:
            sealed = dict(page.decode(self.heard[one, "shares"])[0][0]) if (one, "shares") in self.heard else {}
            for t in sealed.keys() & self.traitors:
                both = page.opened(self.traitors[t].sealing, self.keys(one)[0], sealed[t], (self.digest(one), one, t))
                own[one][t + 1], keys[one][t + 1] = both[:33], both[33:]
            if (one, "reveal") in self.heard:
                revealed = page.decode(self.heard[one, "reveal"])[0]
                for found, shares in zip((own, keys), revealed, strict=True):
                    for other, share in shares:
                        if other in found:
                            found[other][one + 1] = share
        least = self.rules.threshold
        return tuple({one: page.combined(shares, least) for one, shares in found.items()} for found in (own, keys))

    def unmasked(self):
        """Take all known masks off each honest vector: what is left of it by its member, and whose masks are left.

        The own mask of a member is called by -1.
        """
        own, keys = self.secrets()
        privates = {one: X25519PrivateKey.from_private_bytes(key) for one, key in keys.items() if key}
        privates = {
            one: key for one, key in privates.items() if key.public_key().public_bytes_raw() == self.keys(one)[1]
        } | {one: traitor.masking for one, traitor in self.traitors.items()}
        bare, left = {}, {}
        for one, secret in own.items():
            if (one, "vector") not in self.heard:
                continue
            vector = page.unpacked(self.heard[one, "vector"], self.rules.length, self.rules.bits)
            vector -= 0 if secret is None else self.stream(secret)
            near = self.neighbours(one) & set(self.told[one, "shares"][0])
            hidden = set() if one in privates else near - privates.keys()
            left[one] = hidden | ({-1} if secret is None else set())
            for other in near - hidden:
                holder, public = (one, other) if one in privates else (other, one)
                key = page.agreed(
                    privates[holder], self.keys(public)[1], "mask", self.digest(one), min(one, other), max(one, other)
                )
                vector -= self.stream(key) * (1 if other > one else -1)
            bare[one] = vector % (1 << self.rules.bits)
        return bare, left

    def learned(self):
        """Add up members that share masks, which then cancel; where a mask has no other end, nothing is learned."""
        bare, left = self.unmasked()
        sums = {}
        for first in bare:
            group, todo = set(), {first}
            while todo:
                one = todo.pop()
                group.add(one)
                todo |= (left[one] & bare.keys()) - group
            if all(left[one] <= bare.keys() and all(one in left[other] for other in left[one]) for one in group):
                sums[frozenset(group)] = sum(bare[one] for one in group) % (1 << self.rules.bits)
        return sums

    def stream(self, key):
        return page.stream(key, self.rules.length, self.rules.bits)

    def plain(self, group):
        return self.integers[sorted(group)].sum(0) % (1 << self.rules.bits)
