"""Simulated sinks: writers stage batches that nobody sees, and a driver publishes those of one
attempt, at one stamp. Now and then it asks again, or dies: another one comes with the same batch of
the query, and other bytes.
"""

from __future__ import annotations

from collections import deque
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
from weir_lab.sim.history import Ack, Publish, Scattering
from weir_lab.sim.programs.publishers.atomic import AtomicPublisher, PublishAttempt, Seat
from weir_lab.sim.programs.scene import Scene

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


@dataclass(slots=True, eq=False, kw_only=True)
class _Attempt(PublishAttempt):
    """An attempt to publish a batch of the query, and what is to be staged before."""

    stages: deque[Stage]


class Sinker(AtomicPublisher[_Attempt]):
    """Publishes so many batches of one query, one after the other, each once."""

    def __init__(self, scene: Scene, name: str, times: int) -> None:
        """Be a query of this name."""
        super().__init__(scene, name, _SIZES)
        self._times = times
        self._batch_id = 0

    def _next(self) -> None:
        if self._seat is None or self._batch_id >= self._times:
            return
        attempt = self._held = self._compose(self._seat)
        self._go_on(attempt)
        self._endanger(attempt, die=_DIE, hang_up=_HANG_UP)

    # -- what is staged ------------------------------------------------------------------------

    def _compose(self, seat: Seat) -> _Attempt:
        dice, now = self.world.dice, self.world.now
        chosen = self._choose(_PARTS_MAX)
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
        request = self._publication(seat, parts)
        return _Attempt(
            request=request, scattering=scattering, operation=operation,
            publishes={group: part.publishes for group, part in parts.items()},
            stages=deque(stage for run in stages for stage in run),
        )  # fmt: skip

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

    def _publication(self, seat: Seat, parts: dict[int, _Part]) -> PublishStaged:
        grant, groups = seat.grant, [batch_part(group) for group in parts]
        groups.append(acks_part(self.addresses[0].group))
        scattered = Scattered(seat.number, tuple(sorted(groups)))
        batches = []
        for group, part in parts.items():
            data = encode(
                [], group=group, producer=grant.producer, epoch=grant.epoch,
                sequence=seat.sequences[part.partition], scattered=scattered,
                publication=Publication(self.name, self._batch_id, tuple(part.runs)),
            )  # fmt: skip
            batches.append(PublicationPart(self.addresses[part.partition], bytes(data)))
        return PublishStaged(
            grant.producer, grant.epoch, seat.number, self._seen, self.name, self._batch_id,
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

    # -- what becomes of it --------------------------------------------------------------------

    def _published(self, held: _Attempt) -> None:
        self._batch_id += 1

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
        self._seat = None  # what was sent may be on its way yet, under its number
        self.ready()

    def _raised(self, reply: m.Reply) -> None:
        """Go on, whatever came of it: who cannot stage yet is refused again."""
