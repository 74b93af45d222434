"""Simulated readers by offset, onlookers, and consumers of a shared cluster."""

from __future__ import annotations

from typing import ClassVar

from weir.errors import OffsetOutOfRange, StaleGrant, UnknownCluster, refusal
from weir.model.topic import AckOutcome, Mode
from weir.protocol.client import messages as m
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Ack, Grant, Look
from weir_lab.sim.programs.program import Client, past
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.subscribers.hands import HOLD_MS_MAX, Hands
from weir_lab.sim.programs.subscribers.wholes import Wholes

_WAIT_MS = 100
_LEASES_MS = (40, 100, 250)
LEASE_MS_MAX = max(_LEASES_MS)
#: What a consumer asks for in the end, when it hurries.
_ALL, _ALL_BYTES = 50, 20_000
_NEXT = (0, 15 * MS)
_LOOK = (1 * MS, 60 * MS)
_SIZES = (1, 500, 4_000)
_REWIND = 0.05
_WHOLE = 0.5
_LINGER = 0.25
_FORGET = 0.1
_LATE = 0.15
_DIE = 0.08
_GIVE_BACK = 0.1
_LATE_BACK = 0.5
_EXTEND = 0.15


class Reader(Client):
    """Reads one partition by offset with long polls, restarting from its position."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        partition: int,
    ) -> None:
        """Begin at offset 0; as an `ending` reader, read until there is nothing more."""
        super().__init__(scene, name)
        self.position = 0
        self.at_end = False
        self._partition = partition
        self._fetching = False
        self._wholes = Wholes(self, bool(scene.history.retention_bytes))

    @property
    def finished(self) -> bool:
        """Whether the end was reached."""
        return self.at_end and not self._wholes.under_way

    def end(self) -> None:
        """Read until there is nothing more."""
        self.ending, self.at_end = True, False

    def ready(self) -> None:
        """Go on from the position."""
        self._fetch()

    def closed(self) -> None:
        """Forget the fetch that was under way."""
        super().closed()
        self._fetching = False
        self._wholes.closed()

    def _fetch(self) -> None:
        if self.link is None or self._fetching or (self.ending and self.at_end):
            return
        dice = self.world.dice
        if self.position and not self.ending and self.world.chance(_REWIND):
            self.position = dice.randrange(self.position)
        max_bytes = dice.choice(_SIZES)
        wait_ms = 0 if self.ending else dice.choice((0, _WAIT_MS))
        address, offset = self.addresses[self._partition], self.position
        self._fetching = True
        self.ask(
            m.Fetch(address, offset, max_bytes, wait_ms, equal_stamps=True),
            lambda reply: self._fetched(offset, reply),
        )

    def _fetched(self, offset: int, reply: m.Reply) -> None:
        self._fetching = False
        if isinstance(reply, m.Fetched):
            found = self.check(self._partition, reply.batches, offset, reply.voids)
            behind = past(reply.voids, found[-1].header.next_offset if found else offset)
            if behind != reply.next_offset or reply.committed < behind:
                self.complain("Honest", f"said [{offset}, {reply.next_offset}), gave to {behind}")
            for batch in found:
                if self.world.chance(_WHOLE):
                    self._wholes.read(self._partition, batch, self.world.dice.choice(_SIZES))
            self.position = behind
            self.at_end = behind >= reply.committed
        elif isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            if isinstance(error, OffsetOutOfRange) and self.history.retention_bytes:
                self._moved_up(offset, error.detail)
            elif not error.retryable:
                # It was there when this reader got to it.
                self.complain("Durable", f"fetch from {offset} was refused: {error!r}")
        self.world.after(self.rhythm(_NEXT), self._fetch)

    def _moved_up(self, offset: int, start: int) -> None:
        """What was asked for is past retention: go on at the log's start."""
        if start <= offset:
            self.complain("Durable", f"{offset} was there and is not: {start} is said to be")
        self.position = start


class Onlooker(Client):
    """Asks now and then where partitions end: it must hear of all that was confirmed by then."""

    def __init__(self, scene: Scene, name: str) -> None:
        """Wait long for an answer: a node that stood still may give it when it wakes."""
        super().__init__(scene, name)
        self.patience = 3

    def ready(self) -> None:
        """Go on asking on this connection."""
        self.world.after(self.rhythm(_LOOK), self._look, self.link)

    def _look(self, link: Link | None) -> None:
        if link is not self.link or self.ending:
            return
        partition, asked = self.world.dice.randrange(len(self.addresses)), self.world.now
        request = m.Positions(self.addresses[partition])
        self.ask(request, lambda reply: self._looked(partition, asked, reply))
        self.ready()

    def _looked(self, partition: int, asked: int, reply: m.Reply) -> None:
        if isinstance(reply, m.PositionsReply):
            self.history.looks.append(Look(partition, asked, reply.end))


class Consumer(Client):
    """One consumer of a cluster: pulls, acks, dies with grants in its hands, acks late."""

    mode: ClassVar[Mode] = Mode.SHARED

    def __init__(
        self,
        scene: Scene,
        name: str,
        partition: int,
        cluster: str,
    ) -> None:
        """Work for `cluster`."""
        super().__init__(scene, name)
        self.cluster = cluster
        #: Since when this consumer ends; its leases and those before it are over some time later.
        self.ending_since = 0
        self._partition = partition
        self._pulling = False
        self._drained = False
        self._acking = 0
        self._hands = Hands(self, partition)
        self._connections = 0
        #: Of this connection.
        self._grants: list[Grant] = []
        brokers = scene.brokers
        #: Whether it is known when the broker lets go of grants: a trunk may break unseen.
        self._knows_leases = brokers.machine.logs == 1 and not brokers.far

    @property
    def finished(self) -> bool:
        """Whether a pull brought nothing after all leases were over, and nothing is under way."""
        busy = self._acking or self._pulling or self._hands.waiting
        return self._drained and not busy

    def ready(self) -> None:
        """Pull. Leases of an earlier leader may last up to their whole length from here on."""
        self.ending_since = max(self.ending_since, self.world.now)
        self._connections += 1
        if self.mode is not Mode.SHARED:
            self.history.modes[self._partition, self.cluster] = self.mode
        self._pull()

    def closed(self) -> None:
        """Forget the pull that was under way."""
        super().closed()
        self._pulling = False
        self._acking = 0
        self._hands.closed()

    def lost(self, link: Link) -> None:
        """The broker knows that too, unless it is gone itself: then its grants last."""
        if not link.orphaned and link is self.link:
            for grant in self._grants:
                grant.gone = link.broke
        self._grants.clear()
        super().lost(link)

    def _pull(self) -> None:
        if self.link is None or self._pulling:
            return
        dice, now = self.world.dice, self.world.now
        request = m.Pull(
            self.addresses[self._partition],
            self.cluster,
            dice.choice((1, 3, 10)) if not self.ending else _ALL,
            dice.choice((1, 500, 4000)) if not self.ending else _ALL_BYTES,
            # What has to be read from the disk first is worth a wait: else nothing seems left.
            _WAIT_MS if self.ending else dice.choice((0, _WAIT_MS)),
            dice.choice(_LEASES_MS),
            self.mode,
        )
        self._pulling = True
        self.ask(request, lambda reply: self._pulled(now, request.lease_ms, reply))
        if not self.ending and self.world.chance(_DIE) and self.link is not None:
            self.link.cut(self)

    def _pulled(self, pulled: int, lease_ms: int, reply: m.Reply) -> None:
        self._pulling = False
        if isinstance(reply, m.Granted) and reply.fence:
            self._granted(pulled, lease_ms, reply)
        elif isinstance(reply, m.Granted):
            over = max(LEASE_MS_MAX, HOLD_MS_MAX) + 100 + self.scene.ahead_ms
            self._drained = self.ending and pulled > self.ending_since + over * MS
        elif isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            # There may be a new leader, which continues the leases as they were when its log ended.
            self.ending_since = max(self.ending_since, self.world.now)
            if not error.retryable:
                self.complain("Honest", f"a pull was refused: {error!r}")
        if not self._drained:
            self.world.after(self.rhythm(_NEXT), self._pull)

    def _granted(self, pulled: int, lease_ms: int, reply: m.Granted) -> None:
        runs = reply.runs or ((reply.offset, reply.next_offset),)
        found = self.check(self._partition, reply.batches, reply.offset, runs=runs)
        if not found or found[-1].header.next_offset < reply.next_offset:
            self.complain("Honest", f"a grant to {reply.next_offset} with less in it")
        for first, behind in runs:
            grant = Grant(
                self._partition,
                self.cluster,
                reply.fence,
                first,
                behind,
                reply.attempts,
                pulled,
                self.world.now,
                lease_ms if self._knows_leases else 0,
                stamp=reply.stamp,
                holder=f"{self.name}#{self._connections}",
            )
            self.history.grants.append(grant)
            self._grants.append(grant)
            if not self.ending and self.world.chance(_EXTEND):
                until = self._hands.extend(grant)
                if self.mode is Mode.SHARED:  # elsewhere what comes next would overtake it
                    self.world.after(self.world.dice.randrange(until), self._handle, grant)
                    continue
            self._handle(grant)

    def _handle(self, grant: Grant) -> None:
        """Do what consumers do with a grant."""
        if self.ending:
            self._ack(grant, grant.first, grant.behind)
        elif self.world.chance(_FORGET):
            return
        elif self.world.chance(_GIVE_BACK):
            middle = self.world.dice.randrange(grant.first, grant.behind)
            self._hands.give_back(grant, middle, grant.behind)
            self.soon(self._ack, grant, grant.first, middle)
        elif self.world.chance(_LATE):
            delay = self.world.dice.randrange(LEASE_MS_MAX * 2 * MS)
            late = self._give_back if self.world.chance(_LATE_BACK) else self._ack
            self.world.after(delay, late, grant, grant.first, grant.behind)
        elif self.world.chance(_LINGER):
            # In parts, so that grants are left with holes.
            middle = self.world.dice.randint(grant.first, grant.behind)
            self.soon(self._ack, grant, middle, grant.behind)
            self.soon(self._ack, grant, grant.first, middle)
        else:
            self.soon(self._ack, grant, grant.first, grant.behind)

    def _give_back(self, grant: Grant, first: int, behind: int) -> None:
        if not self.ending:
            self._hands.give_back(grant, first, behind)

    def _ack(self, grant: Grant, first: int, behind: int) -> None:
        if first == behind or self.link is None or not self.addresses:
            return
        ack = Ack(grant.partition, grant.cluster, grant.fence, first, behind, self.world.now)
        self.history.acks.append(ack)
        self._acking += 1
        self._drained = False
        request = m.Ack(
            self.addresses[self._partition],
            self.cluster,
            [(grant.fence, first, behind)],
            exact=True,
        )
        self.ask(request, lambda reply: self._acked(ack, reply))

    def _acked(self, ack: Ack, reply: m.Reply) -> None:
        self._acking -= 1
        if isinstance(reply, m.Acked):
            ack.late = frozenset(o for _, a, b, _ in reply.late for o in range(a, b))
            if any(outcome != AckOutcome.DONE_ELSEWHERE for *_, outcome in reply.late):
                ack.stale = self.world.now
            else:
                ack.confirmed = self.world.now
        elif isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            if isinstance(error, StaleGrant):
                ack.stale = self.world.now
            elif not error.retryable and not isinstance(error, UnknownCluster):
                self.complain("AckedOnce", f"an ack was refused: {error!r}")
        if self.ending and not self._pulling:
            self._pull()
