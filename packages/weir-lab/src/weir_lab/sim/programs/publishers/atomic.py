"""What simulated clients have in common that publish to several partitions at one stamp or not at
all: one publication at a time, asked for with the same bytes until its fate is known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from weir.errors import Refused, refusal
from weir.protocol.client import messages as m
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Confirmed, Operation, Publish, Scattering
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.scene import Scene

_NEXT = (0, 30 * MS)
#: How long after a request was sent its client dies, or hangs up.
_MIDWAY = (0, 60 * MS)


@dataclass(slots=True, eq=False, kw_only=True)
class PublishAttempt:
    """A publication under way, and what the history says of it."""

    request: m.Request
    scattering: Scattering
    operation: Operation
    #: By group, the batches that are published there, in their order.
    publishes: dict[int, list[Publish]]
    sends: int = 0
    is_over: bool = False


@dataclass(slots=True)
class Seat:
    """A producer id, and what it has sent."""

    grant: m.ProducerGrant
    number: int = 0
    #: By partition.
    sequences: Counter[int] = field(default_factory=Counter)


AttemptT = TypeVar("AttemptT", bound=PublishAttempt)


class AtomicPublisher(Client, Generic[AttemptT]):
    """Publishes one thing after the other, each in several partitions."""

    def __init__(self, scene: Scene, name: str, sizes: tuple[int, ...]) -> None:
        """Send values that are padded to these sizes; in half of the runs, all of 8 bytes."""
        super().__init__(scene, name)
        dice = scene.world.dice
        self._sizes = dice.choice(((8,), sizes))
        self.patience = dice.choice((1, 3))
        self._serial = 0
        self._seen = 0
        self._seat: Seat | None = None
        self._opening = self._running = False
        #: Partitions that have ended.
        self._closed: set[int] = set()
        self._held: AttemptT | None = None

    @property
    def finished(self) -> bool:
        """Whether it knows what became of all that it sent, unless it died."""
        return self._held is None

    def ready(self) -> None:
        """Ask again for what has no answer, or go on."""
        if self._held is not None:
            self._go_on(self._held)
        elif self._seat is None:
            self._open()
        else:
            self._run()

    def closed(self) -> None:
        """No answer will come."""
        super().closed()
        self._opening = False

    def _open(self) -> None:
        # It may have asked twice: refused on one connection, it lost another.
        if self._seat is None and not self._opening and not self.ending and self.link is not None:
            self._opening = True
            self.ask(m.OpenProducer(), self._opened)

    def _opened(self, reply: m.Reply) -> None:
        self._opening = False
        if isinstance(reply, m.ProducerGrant):
            self._seat = Seat(reply)
            self._run()
        else:
            self.soon(self._open)

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self.world.after(self.rhythm(_NEXT), self._wake)

    def _wake(self) -> None:
        self._running = False
        if self.link is not None and not self.ending and self._held is None:
            self._next()

    @abstractmethod
    def _next(self) -> None:
        """Begin the next publication, if there is one."""

    @abstractmethod
    def _go_on(self, held: AttemptT) -> None:
        """Do what is left of a publication."""

    # -- making it -----------------------------------------------------------------------------

    def _choose(self, most: int) -> list[int]:
        """Draw some of the partitions that have not ended."""
        dice = self.world.dice
        taking = [p for p in range(len(self.addresses)) if p not in self._closed]
        return sorted(dice.sample(taking, dice.randint(1, min(len(taking), most))))

    def _value(self, partition: int) -> bytes:
        self._serial += 1
        name = f"{self.name}.{self._serial}.{partition}".encode()
        return name.ljust(self.world.dice.choice(self._sizes), b".")

    # -- sending it ----------------------------------------------------------------------------

    def _send(self, held: AttemptT) -> None:
        """Ask for it, each time with the same bytes."""
        if held.is_over or self.link is None:
            return
        held.sends += 1
        for publishes in held.publishes.values():
            for publish in publishes:
                publish.sends += 1
        send = held.sends
        self.ask(held.request, lambda reply: self._answered(held, send, reply))

    def _endanger(self, held: AttemptT, die: float, hang_up: float) -> None:
        """Let the client die in the middle, or hang up, with these probabilities."""
        if self.world.chance(die):
            self.world.after(self.world.between(*_MIDWAY), self._die, held)
        elif self.world.chance(hang_up):
            self.world.after(self.world.between(*_MIDWAY), self._hang_up, held)

    def _die(self, held: AttemptT) -> None:
        """Never learn what became of it: the next publication has another producer id."""
        if not held.is_over:
            held.scattering.refused = not held.sends
            self._over(held)
            self._seat = None
            self._hang_up(None)

    def _hang_up(self, held: AttemptT | None) -> None:
        """Ask again elsewhere while the first may be under way."""
        if self.link is not None and (held is None or not held.is_over):
            self.link.cut(self)

    def _over(self, held: AttemptT) -> None:
        held.is_over = True
        held.operation.ended = self.world.now
        self._held = None

    # -- answers -------------------------------------------------------------------------------

    def _answered(self, held: AttemptT, send: int, reply: m.Reply) -> None:
        if isinstance(reply, m.ScatterConfirm):
            self._confirmed(held, reply)
        elif isinstance(reply, m.Refusal) and not held.is_over and send == held.sends:
            self._refused(held, refusal(reply.code, reply.message, reply.detail))

    def _confirmed(self, held: AttemptT, reply: m.ScatterConfirm) -> None:
        one, now, offsets = held.scattering, self.world.now, dict(reply.offsets)
        if offsets.keys() != held.publishes.keys():
            self.complain("AllOrNone", f"{held.operation.what} was confirmed as {reply}")
            return
        if one.stamp not in (0, reply.stamp):
            self.complain("AllOrNone", f"confirmed at {one.stamp}, then at {reply.stamp}")
        one.stamp = reply.stamp
        for group, publishes in held.publishes.items():
            offset = offsets[group]
            for publish in publishes:
                publish.confirms.append(Confirmed(now, offset, reply.stamp))
                offset += len(publish.values)
        self._seen = max(self._seen, reply.stamp)
        if one.acks is not None and one.acks.confirmed < 0:
            one.acks.confirmed = now
        if not held.is_over:
            self._over(held)
            assert self._seat is not None
            self._seat.number += 1
            for publishes in held.publishes.values():
                for publish in publishes:
                    self._seat.sequences[publish.partition] += len(publish.values)
            self._published(held)
            self._run()

    def _published(self, held: AttemptT) -> None:
        """Take note that it is published."""

    @abstractmethod
    def _refused(self, held: AttemptT, error: Refused) -> None:
        """Send it again, or give it up."""
