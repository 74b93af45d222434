"""Peers of two namespaces at one shard, for tests of quotas."""

from __future__ import annotations

from typing import Any

from weir.broker.api.effects import HoldSession
from weir.broker.api.events import Received
from weir.errors import Overloaded
from weir.protocol.client import messages as m
from weir.protocol.client import quotas as q
from weir.protocol.client.codec import ClientStream, encode_request

SHOP = "namespace:shop"


class Tenants:
    """A shard with topics of two namespaces, and sessions that publish to them."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        rig.connect()
        self.topics = {name: rig.topic(1, f"{name}/orders") for name in ("shop", "bank")}
        self.grants: dict[int, m.ProducerGrant] = {}
        self.sequences: dict[tuple[int, str], int] = {}
        self.sent = 0

    def limit(self, entity: str = SHOP, **limits: int | None) -> None:
        assert isinstance(self.rig.answer(1, q.SetQuota(entity, tuple(limits.items()))),
                          q.QuotaChanged)  # fmt: skip
        self.pass_ms(50)

    def session(self, number: int) -> int:
        self.rig.connect(number)
        self.grants[number] = self.rig.answer(number, m.OpenProducer())
        return number

    def publish(self, session: int, namespace: str, size: int) -> Any:
        at = self.sequences.get((session, namespace), 0)
        batch = self.rig.batch(self.topics[namespace], self.grants[session], at, b"x" * size)
        reply = self.rig.answer(session, batch)
        self.sent += len(batch.batch)
        if isinstance(reply, m.Confirm):
            self.sequences[session, namespace] = at + 1
        return reply

    def ask(self, session: int, namespace: str, size: int) -> None:
        """Publish as `publish` does, whether it is answered by now or not."""
        at = self.sequences.get((session, namespace), 0)
        self.sequences[session, namespace] = at + 1
        batch = self.rig.batch(self.topics[namespace], self.grants[session], at, b"x" * size)
        self.sent += len(batch.batch)
        self.rig.ask(session, batch)

    def confirmed(self, session: int) -> int:
        """Return how many publishes of a session were confirmed since the last call."""
        self.rig.settle()
        replies = [reply for _, reply in self.rig.replies[session]]
        self.rig.replies[session].clear()
        assert not any(isinstance(one, m.Refusal) for one in replies)
        return sum(isinstance(one, m.Confirm) for one in replies)

    def refused(self, session: int) -> int:
        """Return how many of its publishes, the last ones, were refused with `Overloaded` since the
        last call: it is to send them again, and `ask` does.
        """
        replies = self.rig.replies[session]
        found = [r for _, r in replies if isinstance(r, m.Refusal) and r.code == Overloaded.code]
        replies[:] = [one for one in replies if one[1] not in found]
        for name in self.topics if found else ():
            if (session, name) in self.sequences:
                self.sequences[session, name] -= len(found)
        return len(found)

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.rig.tick()
        self.rig.settle()

    def held(self) -> list[tuple[int, bool]]:
        """Return who is held, and let go, since the last call."""
        others = self.rig.others
        found = [(one.session, one.hold) for one in others if isinstance(one, HoldSession)]
        others[:] = [one for one in others if not isinstance(one, HoldSession)]
        return found

    def use(self, entity: str = SHOP) -> q.QuotaUse:
        found = {one.entity: one for one in self.rig.answer(1, q.ListQuotas()).quotas}
        return found[entity]

    def pipeline(self, session: int, *publishes: int | tuple[str, int]) -> None:
        """Publish by one read so many bytes each time, to the shop or another namespace."""
        stream, frames = ClientStream(), []
        for number, one in enumerate(publishes):
            name, size = ("shop", one) if isinstance(one, int) else one
            at = self.sequences.get((session, name), 0)
            self.sequences[session, name] = at + 1
            batch = self.rig.batch(self.topics[name], self.grants[session], at, b"x" * size)
            data = b"".join(bytes(part) for part in encode_request(batch, 1_000 + number))
            frames += stream.receive(data)
        self.rig.handle(Received(session, frames))
