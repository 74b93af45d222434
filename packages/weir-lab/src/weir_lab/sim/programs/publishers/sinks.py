"""Simulated sinks: writers stage batches that nobody sees, and a driver publishes those of one
attempt, at one stamp. Now and then it asks again, or dies: another one comes with the same batch of
the query, and other bytes.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from weir.errors import (
    BatchPublished,
    LevelTooLow,
    PartitionEnded,
    Refused,
    SequenceGap,
    StagedRunGone,
    StampTooFar,
    refusal,
)
from weir.model.batch import parse
from weir.model.batch_builder import encode
from weir.model.columns import Publication, Scattered, StagedRun, chained
from weir.model.ids import acks_part, batch_part
from weir.protocol.client import messages as m
from weir.protocol.client.nodes import RaiseLevel
from weir.protocol.client.sinks import PublicationPart, Stage, Staged
from weir.protocol.client.sinks import Publish as PublishStaged
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Ack, Confirmed, Operation, Publish, Scattering
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.scene import Scene

_NEXT = (0, 30 * MS)
#: How long after it was sent whoever sent it dies, or hangs up.
_MIDWAY = (0, 60 * MS)
_PARTS_MAX = 3
#: Runs of a partition, batches of a run, and messages of a batch.
_RUNS, _BATCHES, _COUNTS = (1, 1, 2), (1, 2, 5), (1, 1, 2, 3)
_SIZES = (0, 20, 150)
_TWICE, _HANG_UP, _DIE, _REFRESH = 0.15, 0.15, 0.15, 0.1
#: How likely a task is run twice, and a writer dies: what it staged is not chosen.
_SPARE = 0.3
_RUN_MAX = 1 << 62


@dataclass(slots=True, eq=False)
class _Part:
    """What is staged in one partition: the runs that are chosen, and what becomes of it."""

    partition: int
    runs: list[StagedRun] = field(default_factory=list)
    #: Of each batch that is chosen, in order.
    publishes: list[Publish] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(run.messages for run in self.runs)


@dataclass(slots=True, eq=False)
class _Attempt:
    """An attempt to publish a batch of the query: what is to be staged yet, and what follows."""

    stages: deque[Stage]
    request: PublishStaged
    scattering: Scattering
    operation: Operation
    #: By group.
    parts: dict[int, _Part]
    sends: int = 0
    is_over: bool = False


@dataclass(slots=True)
class _Driver:
    """A producer id, and what it has published."""

    grant: m.ProducerGrant
    number: int = 0
    #: By partition.
    sequences: Counter[int] = field(default_factory=Counter)


class Sinker(Client):
    """Publishes so many batches of one query, one after the other, each once."""

    def __init__(self, scene: Scene, name: str, times: int) -> None:
        """Be a query of this name."""
        super().__init__(scene, name)
        dice = scene.world.dice
        self._times = times
        self._batch_id = 0
        self._sizes = dice.choice(((8,), _SIZES))
        self.patience = dice.choice((1, 3))
        self._serial = 0
        self._seen = 0
        self._driver: _Driver | None = None
        self._opening = self._running = False
        #: Partitions that have ended.
        self._closed: set[int] = set()
        self._held: _Attempt | None = None

    @property
    def finished(self) -> bool:
        """Whether it knows what became of all that it published, unless it died."""
        return self._held is None

    def ready(self) -> None:
        """Ask again for what has no answer, or go on."""
        if self._held is not None:
            self._go_on(self._held)
        elif self._driver is None:
            self._open()
        else:
            self._run()

    def closed(self) -> None:
        """Nobody will answer."""
        super().closed()
        self._opening = False

    def _open(self) -> None:
        if self._driver is not None or self._opening or self.ending or self.link is None:
            return
        self._opening = True
        self.ask(m.OpenProducer(), self._opened)

    def _opened(self, reply: m.Reply) -> None:
        self._opening = False
        if isinstance(reply, m.ProducerGrant):
            self._driver = _Driver(reply)
            self._run()
        else:
            self.soon(self._open)

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self.world.after(self.rhythm(_NEXT), self._next)

    def _next(self) -> None:
        self._running = False
        if self.link is None or self.ending or self._held is not None or self._driver is None:
            return
        if self._batch_id < self._times:
            attempt = self._held = self._compose(self._driver)
            self._go_on(attempt)
            if self.world.chance(_DIE):
                self.world.after(self.world.between(*_MIDWAY), self._die, attempt)
            elif self.world.chance(_HANG_UP):
                self.world.after(self.world.between(*_MIDWAY), self._hang_up, attempt)

    # -- what is staged ------------------------------------------------------------------------

    def _compose(self, driver: _Driver) -> _Attempt:
        dice, now = self.world.dice, self.world.now
        taking = [p for p in range(len(self.addresses)) if p not in self._closed]
        chosen = sorted(dice.sample(taking, dice.randint(1, min(len(taking), _PARTS_MAX))))
        stages: list[list[Stage]] = []
        parts: dict[int, _Part] = {}
        for partition in chosen:
            part = parts[self.addresses[partition].group] = _Part(partition)
            for _ in range(dice.choice(_RUNS)):
                stages.append(self._stage(part, is_chosen=True))
                if self.world.chance(_SPARE):
                    stages.append(self._stage(part, is_chosen=False))
        dice.shuffle(stages)  # each run in its order
        publishes = [one for part in parts.values() for one in part.publishes]
        self.history.publishes += publishes
        pairs = tuple((one.partition, value) for one in publishes for value in one.values)
        # Of all that publish this batch of the query, one does.
        once = Ack(0, f"sink {self.name}", 0, self._batch_id, self._batch_id + 1, now)
        scattering = Scattering(pairs, acks=once)
        self.history.scatterings.append(scattering)
        operation = self.history.begin(f"{self.name}: batch {self._batch_id}", now)
        request = self._publication(driver, parts)
        return _Attempt(
            deque(stage for run in stages for stage in run), request, scattering, operation, parts
        )

    def _stage(self, part: _Part, is_chosen: bool) -> list[Stage]:
        """Return what stages one run; one that is not chosen is seen by nobody, ever."""
        dice, address = self.world.dice, self.addresses[part.partition]
        number, hash_, messages = dice.randrange(1, _RUN_MAX), 0, 0
        found: list[Stage] = []
        for _ in range(dice.choice(_BATCHES)):
            values = [self._value(part.partition) for _ in range(dice.choice(_COUNTS))]
            data = bytes(encode(values, group=address.group))
            found.append(Stage(address, self.name, self._batch_id, number, len(found), data))
            hash_ = chained(hash_, parse(data).hash)
            messages += len(values)
            if is_chosen:
                part.publishes.append(
                    Publish(
                        part.partition, ("sink", self.name, number), len(found) - 1,
                        tuple(values), self.world.now, scattered=True, after=self._seen,
                    )
                )  # fmt: skip
        if is_chosen:
            part.runs.append(StagedRun(number, len(found), messages, hash_))
        return found

    def _value(self, partition: int) -> bytes:
        self._serial += 1
        name = f"{self.name}.{self._serial}.{partition}".encode()
        return name.ljust(self.world.dice.choice(self._sizes), b".")

    def _publication(self, driver: _Driver, parts: dict[int, _Part]) -> PublishStaged:
        grant, groups = driver.grant, [batch_part(group) for group in parts]
        groups.append(acks_part(self.addresses[0].group))
        scattered = Scattered(driver.number, tuple(sorted(groups)))
        batches = []
        for group, part in parts.items():
            data = encode(
                [], group=group, producer=grant.producer, epoch=grant.epoch,
                sequence=driver.sequences[part.partition], scattered=scattered,
                publication=Publication(self.name, self._batch_id, tuple(part.runs)),
            )  # fmt: skip
            batches.append(PublicationPart(self.addresses[part.partition], bytes(data)))
        return PublishStaged(
            grant.producer, grant.epoch, driver.number, self._seen, self.name, self._batch_id,
            batches,
        )  # fmt: skip

    def _go_on(self, held: _Attempt) -> None:
        """Stage what is left, one batch after the other, and then publish."""
        if held.is_over or self.link is None:
            return
        if not held.stages:
            self._send(held)
            if self.world.chance(_TWICE):
                self._send(held)
            return
        stage = held.stages[0]
        self.ask(stage, lambda reply: self._staged(held, stage, reply))

    def _staged(self, held: _Attempt, stage: Stage, reply: m.Reply) -> None:
        if held.is_over or not held.stages or held.stages[0] is not stage:
            return  # another answer to the same
        if isinstance(reply, Staged):
            held.stages.popleft()
            self._go_on(held)
        elif isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            if error.retryable:
                self.soon(self._go_on, held)
            else:
                self._refused(held, error)

    # -- publishing ----------------------------------------------------------------------------

    def _send(self, held: _Attempt) -> None:
        """Ask for it; who asks again has the same bytes."""
        if held.is_over or self.link is None:
            return
        held.sends += 1
        for part in held.parts.values():
            for publish in part.publishes:
                publish.sends += 1
        send = held.sends
        self.ask(held.request, lambda reply: self._answered(held, send, reply))

    def _die(self, held: _Attempt) -> None:
        """Never learn what became of it: who comes back has the same batch, and other bytes."""
        if not held.is_over:
            held.scattering.refused = not held.sends
            self._over(held)
            self._driver = None
            self._hang_up(None)

    def _hang_up(self, held: _Attempt | None) -> None:
        """Ask again elsewhere while the first may be under way."""
        if self.link is not None and (held is None or not held.is_over):
            self.link.cut(self)

    def _over(self, held: _Attempt) -> None:
        held.is_over = True
        held.operation.ended = self.world.now
        self._held = None

    def _answered(self, held: _Attempt, send: int, reply: m.Reply) -> None:
        if isinstance(reply, m.ScatterConfirm):
            self._confirmed(held, reply)
        elif isinstance(reply, m.Refusal) and not held.is_over and send == held.sends:
            self._refused(held, refusal(reply.code, reply.message, reply.detail))

    def _confirmed(self, held: _Attempt, reply: m.ScatterConfirm) -> None:
        one, now, offsets = held.scattering, self.world.now, dict(reply.offsets)
        if offsets.keys() != held.parts.keys():
            self.complain("AllOrNone", f"{held.request.batch_id} was confirmed as {reply}")
            return
        if one.stamp not in (0, reply.stamp):
            self.complain("AllOrNone", f"confirmed at {one.stamp}, then at {reply.stamp}")
        one.stamp = reply.stamp
        for group, part in held.parts.items():
            offset = offsets[group]
            for publish in part.publishes:
                publish.confirms.append(Confirmed(now, offset, reply.stamp))
                offset += len(publish.values)
        self._seen = max(self._seen, reply.stamp)
        if not held.is_over:
            self._over(held)
            self._batch_id += 1
            assert self._driver is not None
            self._driver.number += 1
            for part in held.parts.values():
                self._driver.sequences[part.partition] += part.messages
            self._run()

    def _refused(self, held: _Attempt, error: Refused) -> None:
        if error.retryable or isinstance(error, StampTooFar):
            self.soon(self._go_on, held)
            return
        if isinstance(error, BatchPublished):
            self._batch_id += 1  # who died had published it
        elif isinstance(error, PartitionEnded):
            self._closed.add(error.detail)
        elif isinstance(error, LevelTooLow):
            self.ask(RaiseLevel(), self._raised)
        elif not isinstance(error, StagedRunGone | SequenceGap):  # a run expires in an hour
            self.complain("AllOrNone", f"a publication was refused for good: {error!r}")
        held.scattering.refused = held.sends < 2
        self._over(held)
        self._driver = None  # what was sent may be on its way yet, under its number
        self.ready()

    def _raised(self, reply: m.Reply) -> None:
        """Go on, whatever came of it: who cannot stage yet is refused again."""
