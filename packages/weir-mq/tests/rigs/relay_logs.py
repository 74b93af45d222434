"""A relay's partition on its own: a log that keeps what it does, and what a child pulls of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.relay import entries as e
from weir.relay import messages as m
from weir.relay import ports as p
from weir.relay.holds import HoldLimits
from weir.relay.lower import Me
from weir.relay.partition import RelayPartition, Settings
from weir.relay.portion import portion_of
from weir.relay.rows import RosterEntry, Row, StoredBatches
from weir.relay.state import RelayState

GROUP = 3 << 16 | 2
CORE, TANDEM = p.UpperNode(1, 1, True), p.UpperNode(10, 1, False)
A, AB = frozenset(("a",)), frozenset(("a", "b"))
NOW = 1_000_000
T = TypeVar("T")


def batch(first: int, tags: Sequence[str | None], stamp: int) -> bytes:
    values = [b"value of %d" % n for n in range(len(tags))]
    data = encode(values, group=GROUP, tags=tags)
    return stamped(data, stamp, first) + bytes(data[HEADER_SIZE:])


class Log:
    """What a host keeps of the effects: entries, and all else that came out last."""

    def __init__(
        self, uppers: tuple[p.UpperNode, ...] = (TANDEM, CORE), interest: frozenset[str] = A
    ) -> None:
        self.entries: list[bytes] = []
        self.out: list[p.Effect] = []
        settings = Settings(Me(7, 30, 1, GROUP), HoldLimits(), 0)
        self.relay = RelayPartition(settings, RelayState(), StoredBatches(), NOW)
        self.do(p.UppersSet(uppers))
        self.do(p.ChildrenSet(frozenset()))
        self.do(p.InterestSet(interest))

    def entry(self, index: int) -> bytes:
        return self.entries[index - 1]

    def do(self, event: p.Event, after_ms: int = 0) -> list[p.Effect]:
        self.out = self.relay.handle(event, NOW + after_ms)
        for effect in self.out:
            if isinstance(effect, p.AppendEntry):
                self.entries.append(b"".join(e.encode_entry(effect.record, *effect.data)))
                assert effect.index == len(self.entries)
        return self.out

    def of(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.out if isinstance(effect, kind)]

    def pulled(self) -> tuple[p.UpperNode, m.Pull]:
        (sent,) = self.of(p.SendToUpper)
        assert isinstance(sent.message, m.Pull)
        return sent.upper, sent.message

    def begin(self, at: int = 50, lineage: int = 1) -> tuple[p.UpperNode, m.Pull]:
        upper, pull = self.pulled()
        self.do(p.RefusalCame(upper, m.LineageEnded(GROUP, pull.number, lineage, 0, ())))
        upper, pull = self.pulled()
        self.do(p.RefusalCame(upper, m.OffsetOutOfRange(GROUP, pull.number, at)))
        self.sync()
        return upper, self.last

    @property
    def last(self) -> m.Pull:
        """The pull that is under way, as its number says."""
        return self._last

    def sync(self) -> None:
        sent = [one.message for one in self.of(p.SendToUpper)]
        pulls = [one for one in sent if isinstance(one, m.Pull)]
        if pulls:
            self._last = pulls[-1]
        self.do(p.Synced(len(self.entries)))

    def answer(
        self, upper: p.UpperNode, pull: m.Pull, rows: Sequence[Row], data: bytes = b"",
        after_ms: int = 0, marks: tuple[m.Mark, ...] = (), chunks: tuple[m.Chunk, ...] = (),
        roster: tuple[RosterEntry, ...] = (), knows_log_start: bool = True,
    ) -> list[p.Effect]:  # fmt: skip
        next_ = pull.offset + sum(row.count for row in rows)
        told = m.Answer(
            GROUP, pull.number, pull.lineage, pull.offset, next_, tuple(rows), 0, next_, roster,
            marks, chunks, knows_log_start=knows_log_start,
        )  # fmt: skip
        return self.do(p.AnswerCame(upper, told, memoryview(data)), after_ms)


def child(offset: int, number: int = 1, through: int = 0, **more: object) -> m.Pull:
    fields = {"system": 7, "brokerset": 40, "node": 1, "topic": 3, "partition": 2,
              "number": number, "lineage": 1, "offset": offset, "filter": 1, "tags": ("a",),
              "credit": 10_000, "durable_through": through} | more  # fmt: skip
    return m.Pull(**fields)  # type: ignore[arg-type]


def served(log: Log, pull: m.Pull) -> m.Answer:
    """Return what a child is told at once."""
    log.do(p.PullCame(5, pull))
    if reads := log.of(p.ReadPortion):
        portion = portion_of(reads[0].plan, log, log.relay.state.chunks, StoredBatches())
        log.do(p.PortionRead(reads[0].ticket, portion))
    (told,) = log.of(p.SendToChild)
    assert isinstance(told.message, m.Answer)
    return told.message
