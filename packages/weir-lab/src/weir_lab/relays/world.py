"""A world of tiers: a core, relays in several sets, a network that loses, disks that forget.

outcome = play(7)
assert not outcome.violations
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from weir.errors import Damaged, RemoteProtocolError
from weir.relay.entries import (
    AnyRecord,
    ChunkStored,
    GapTold,
    Relayed,
    encode_entry,
)
from weir.relay.holds import Child, HoldLimits
from weir.relay.lower import Me
from weir.relay.marks import MarkRegisters
from weir.relay.messages import (
    Answer,
    AnyMessage,
    AskFilter,
    FilterFrom,
    Pull,
    SayHold,
    decode_message,
    encode_message,
)
from weir.relay.partition import RelayPartition, Settings
from weir.relay.portion import Plan, Portion, portion_of
from weir.relay.ports import (
    AnswerCame,
    AppendEntry,
    ChildrenSet,
    Effect,
    Event,
    FilterAsked,
    FilterToldFrom,
    HoldSaid,
    InterestSet,
    LinkClosed,
    LogCut,
    LogMoved,
    Moved,
    PortionRead,
    PullCame,
    ReadPortion,
    ReclaimBelow,
    RefusalCame,
    RetentionSet,
    SendToChild,
    SendToUpper,
    Synced,
    Ticked,
    UpperNode,
    UppersSet,
)
from weir.relay.rows import Tags, covers, within
from weir.relay.state import RelayState
from weir.relay.upper import STALE_MS
from weir_lab.relays import checkers
from weir_lab.relays.core import CorePartition, ModelBatches, unpacked

SYSTEM = 7
TOPIC = 3
TICK_MS = 250
SAY_EVERY_MS = 250
#: The clock of a world begins here.
START_MS = 1_000_000
CORE = (1, 1)


class Shape(NamedTuple):
    """What a seed draws: how long it is faulty, which sets there are, and what goes wrong."""

    active_ms: int
    partitions: int
    #: By child its upper nodes, the preferred one first.
    tree: dict[Child, tuple[Child, ...]]
    loss: float
    damage: float
    sync_ms: int
    latency_ms: int
    bytes_max: int
    rows_max: int
    #: How likely each kind of fault is, a turn.
    faults: float
    promotes: bool
    #: After so long without news of the core relays send their children elsewhere.
    stale_ms: int = STALE_MS
    #: A tandem node that stays cut off from its uppers to the end, if any.
    cut_off: Child | None = None


@dataclass(slots=True)
class Disk:
    """The log of one partition of a relay: what is written, and how much of it is durable."""

    entries: list[tuple[AnyRecord, bytes | None]] = field(default_factory=list)
    durable: int = 0
    #: Entries up to here lost their data, for nobody needs it.
    reclaimed: int = 0
    is_flushing: bool = False

    def entry(self, index: int) -> bytes:
        """Return the bytes of an entry. Raises `Damaged` if they were given up."""
        record, data = self.entries[index - 1]
        if data is None:
            raise Damaged(f"entry {index} is gone")
        return b"".join(encode_entry(record, data) if data else encode_entry(record))


@dataclass(slots=True)
class Tally:
    """How often something happened: ranges that were stored, gaps, and logs that were cut."""

    stored: int = 0
    gaps: int = 0
    cuts: int = 0


class Relay:
    """A node of a relay: one machine a partition."""

    def __init__(self, me: Child, partitions: int) -> None:
        """Begin with empty disks."""
        self.me = me
        self.disks = [Disk() for _ in range(partitions)]
        self.machines: list[RelayPartition] = []
        self.readers = MarkRegisters()
        self.first_number = 0


class World:
    """What a seed makes of a shape."""

    def __init__(self, shape: Shape, seed: int) -> None:
        """Begin with a core without messages."""
        self.shape = shape
        self.random = Random(seed)
        self.now = START_MS
        self.violations: list[str] = []
        self.tally = Tally()
        self._queue: list[tuple[int, int, tuple[object, ...]]] = []
        self._count = 0
        limits = HoldLimits(bytes_max=shape.bytes_max)
        self.cores = [CorePartition(TOPIC << 16 | n, limits) for n in range(shape.partitions)]
        self.joined = min(2, shape.partitions)
        self.retention = [0] * shape.partitions
        self.interest: dict[Child, frozenset[str]] = {}
        self.uppers = dict(shape.tree)
        self.cut_off: dict[tuple[Child, Child], int] = {}
        self.relays = {me: Relay(me, shape.partitions) for me in shape.tree}
        for me in shape.tree:
            self._draw_interest(me)
        for relay in self.relays.values():
            self.start(relay)

    # -- time --------------------------------------------------------------------------------

    def after(self, delay_ms: int, *what: object) -> None:
        """Let something happen later."""
        self._count += 1
        heappush(self._queue, (self.now + delay_ms, self._count, what))

    def run(self, until: int) -> None:
        """Let happen what is to happen by then."""
        while self._queue and self._queue[0][0] <= until and not self.violations:
            self.now, _, what = heappop(self._queue)
            self._happen(what)
        self.now = max(self.now, until)

    def _happen(self, what: tuple[object, ...]) -> None:
        match what:
            case ("arrive", sender, to, partition, data):
                self._arrive(sender, to, partition, data)  # type: ignore[arg-type]
            case ("interest", me, partition, life):
                relay = self.relays[me]  # type: ignore[index]
                if relay.first_number == life:
                    event = InterestSet(self.interest[relay.me])
                    self.handle(relay, partition, event)  # type: ignore[arg-type]
            case ("read", me, partition, life, effect):
                self._read(me, partition, life, effect)  # type: ignore[arg-type]
            case ("sync", me, partition, life, count):
                self._sync(self.relays[me], partition, life, count)  # type: ignore[index, arg-type]
            case ("tick", me, life):
                self._tick(self.relays[me], life)  # type: ignore[index, arg-type]

    # -- the network -------------------------------------------------------------------------

    def send(self, sender: Child, to: Child, partition: int, message: AnyMessage,
             data: Sequence[object] = ()) -> None:  # fmt: skip
        """Send a message, which may be lost, damaged and overtaken."""
        dice, shape = self.random, self.shape
        pair = (min(sender, to), max(sender, to))
        if dice.random() < shape.loss or self.cut_off.get(pair, 0) > self.now:
            return
        packed = b"".join(encode_message(message, data))  # type: ignore[arg-type]
        if data and dice.random() < shape.damage:
            flipped = bytearray(packed)
            flipped[dice.randrange(len(packed))] ^= 1 << dice.randrange(8)
            packed = bytes(flipped)
        self.after(dice.randint(1, shape.latency_ms), "arrive", sender, to, partition, packed)

    def _arrive(self, sender: Child, to: Child, partition: int, packed: bytes) -> None:
        try:
            message, data = decode_message(packed)
        except RemoteProtocolError:
            return
        link = sender[0] << 32 | sender[1]
        event: Event
        match message:
            case Pull():
                event = PullCame(link, message)
            case AskFilter():
                event = FilterAsked(link, message)
            case SayHold():
                event = HoldSaid(message)
            case Answer():
                event = AnswerCame(self._node(sender), message, data)
            case FilterFrom():
                event = FilterToldFrom(self._node(sender), message)
            case _:
                event = RefusalCame(self._node(sender), message)
        if to == CORE:
            assert isinstance(event, PullCame | FilterAsked | HoldSaid)
            self._perform(CORE, partition, self.cores[partition].upper.handle(event, self.now))
        else:
            self.handle(self.relays[to], partition, event)

    def _node(self, child: Child) -> UpperNode:
        return UpperNode(*child, child == CORE)

    # -- relays ------------------------------------------------------------------------------

    def start(self, relay: Relay) -> None:
        """Start a relay from its disks, of which only what is durable is left."""
        relay.first_number += 1_000_000
        relay.machines, relay.readers = [], MarkRegisters()
        for partition, disk in enumerate(relay.disks):
            del disk.entries[disk.durable :]
            disk.is_flushing = False
            state = RelayState()
            cut = self.random.randrange(len(disk.entries) + 1)
            for at, (record, data) in enumerate(disk.entries):
                if at == cut:
                    state = RelayState.decode(state.encode())
                state.apply(record, len(data or b"") + 100)
            group = self.cores[partition].group
            me = Me(SYSTEM, *relay.me, group)
            limits = HoldLimits(bytes_max=self.shape.bytes_max)
            settings = Settings(
                me, limits, relay.first_number, SAY_EVERY_MS, self.shape.stale_ms
            )  # fmt: skip
            relay.machines.append(RelayPartition(settings, state, ModelBatches(), self.now))
        for partition in range(len(relay.disks)):
            self._tell(relay, partition)
        self.after(self.random.randrange(TICK_MS), "tick", relay.me, relay.first_number)

    def _tell(self, relay: Relay, partition: int) -> None:
        children = frozenset(me for me, uppers in self.uppers.items() if relay.me in uppers)
        uppers = tuple(map(self._node, self.uppers[relay.me]))
        for event in (
            UppersSet(uppers), ChildrenSet(children), InterestSet(self.interest[relay.me]),
            RetentionSet(self.retention[partition]),
        ):  # fmt: skip
            self.handle(relay, partition, event)

    def tell_all(self) -> None:
        """Tell every relay what the metadata says now."""
        for relay in self.relays.values():
            for partition in range(len(relay.disks)):
                self._tell(relay, partition)

    def handle(self, relay: Relay, partition: int, event: Event) -> None:
        """Let a machine take an event, and carry out what it returns."""
        effects = relay.machines[partition].handle(event, self.now)
        self._perform(relay.me, partition, effects)

    def _perform(self, me: Child, partition: int, effects: Sequence[Effect]) -> None:
        life = 0 if me == CORE else self.relays[me].first_number
        for effect in effects:
            match effect:
                case SendToChild(link, message, data):
                    child = (link >> 32, link & 0xFFFFFFFF)
                    self.send(me, child, partition, message, data)
                case SendToUpper(upper, message):
                    self.send(me, upper[:2], partition, message)
                case ReadPortion():
                    delay = self.random.randint(0, 3)
                    self.after(delay, "read", me, partition, life, effect)
                case AppendEntry(index, record, data):
                    self._append(self.relays[me], partition, index, record, b"".join(data))
                case ReclaimBelow(index):
                    self._reclaim(self.relays[me], partition, index)
                case Moved():
                    self._moved(self.relays[me], partition, effect)

    def _read(self, me: Child, partition: int, life: int, effect: ReadPortion) -> None:
        event: PortionRead
        if me == CORE:
            core = self.cores[partition]
            rows = self.random.randint(1, self.shape.rows_max)
            event = PortionRead(effect.ticket, core.read(effect.plan, rows))
            self._perform(CORE, partition, core.upper.handle(event, self.now))
            return
        relay = self.relays[me]
        if relay.first_number != life:
            return
        portion = self._portion(relay, partition, effect.plan)
        self.handle(relay, partition, PortionRead(effect.ticket, portion))

    def _portion(self, relay: Relay, partition: int, plan: Plan) -> Portion | None:
        state = relay.machines[partition].state
        try:
            return portion_of(plan, relay.disks[partition], state.chunks, ModelBatches())
        except Damaged as error:
            if state.start <= plan.first and state.reach(plan.first, plan.tags) > plan.first:
                self.violations.append(f"Held: {relay.me} lost what it needs: {error}")
            return None

    def _append(
        self, relay: Relay, partition: int, index: int, record: AnyRecord, data: bytes
    ) -> None:
        disk, core = relay.disks[partition], self.cores[partition]
        state = relay.machines[partition].state
        disk.entries.append((record, data))
        assert len(disk.entries) == index
        if isinstance(record, Relayed):
            self.tally.stored += 1
            version = next(one for one in state.filters if one.version == record.filter)
            self.violations += checkers.of_range(core, record, data, version.tags)
            if record.lineage == core.lineage:
                self.violations += checkers.of_roster(core, state, record.next)
            self._check_chunks(relay, partition, record, data)
        elif isinstance(record, GapTold):
            self.tally.gaps += 1
            self.violations += checkers.of_gap(core, record.first, record.next)
        if not disk.is_flushing:
            self._flush(relay, partition)

    def _flush(self, relay: Relay, partition: int) -> None:
        """Write and sync what was appended by now; one flush is under way at a time."""
        disk = relay.disks[partition]
        disk.is_flushing = True
        delay = self.random.randint(1, self.shape.sync_ms)
        count = len(disk.entries)
        self.after(delay, "sync", relay.me, partition, relay.first_number, count)

    def _check_chunks(self, relay: Relay, partition: int, record: Relayed, data: bytes) -> None:
        start = relay.machines[partition].state.start
        rows = within(record.first, record.rows, memoryview(data), start, record.next)
        for _, _, batch in rows:
            for first, count in unpacked(batch).chunks if batch is not None else ():
                for core_index in range(first, first + count):
                    self._check_chunk(relay, partition, core_index)

    def _check_chunk(self, relay: Relay, partition: int, core_index: int) -> None:
        index = relay.machines[partition].state.chunks.find(core_index)
        record, data = relay.disks[partition].entries[index - 1] if index else (None, None)
        wanted = self.cores[partition].log.chunks.get(core_index)
        if not isinstance(record, ChunkStored) or data is None or data != wanted:
            self.violations.append(f"Chunk: {relay.me} lacks chunk {core_index} of a value")

    def _sync(self, relay: Relay, partition: int, life: int, count: int) -> None:
        if relay.first_number == life:
            disk = relay.disks[partition]
            disk.is_flushing = False
            disk.durable = max(disk.durable, count)
            if disk.durable < len(disk.entries):
                self._flush(relay, partition)
            self.handle(relay, partition, Synced(disk.durable))

    def _reclaim(self, relay: Relay, partition: int, index: int) -> None:
        """Give up data; what is behind `StartMoved` is written with it, so it counts as durable."""
        disk = relay.disks[partition]
        disk.durable = len(disk.entries)
        self.handle(relay, partition, Synced(disk.durable))
        for at in range(disk.reclaimed, index - 1):
            disk.entries[at] = (disk.entries[at][0], None)
        disk.reclaimed = max(disk.reclaimed, index - 1)
        state = relay.machines[partition].state
        for at in range(disk.reclaimed, len(disk.entries)):
            record, data = disk.entries[at]
            if isinstance(record, Relayed) and at + 1 in state.ranges.indexes:
                assert data is not None  # what is not reclaimed has it
                self._check_chunks(relay, partition, record, data)

    def _moved(self, relay: Relay, partition: int, moved: Moved) -> None:
        if moved.cut_at >= 0:
            self.tally.cuts += 1
            relay.readers.cut(partition)
        for mark in moved.marks:
            relay.readers.say(partition, mark)
        _, stamp = relay.readers.barrier()
        states = [machine.state for machine in relay.machines]
        if stamp and moved.marks:
            ends = [state.end if state.begun else 0 for state in states]
            lineages = [state.lineage if state.begun else 0 for state in states]
            self.violations += checkers.of_barrier(self.cores, ends, lineages, stamp)

    def _tick(self, relay: Relay, life: int) -> None:
        if relay.first_number == life:
            for partition in range(len(relay.disks)):
                self.handle(relay, partition, Ticked())
            self.after(TICK_MS, "tick", relay.me, life)

    # -- what the metadata says --------------------------------------------------------------

    def _draw_interest(self, me: Child) -> None:
        """Let a set have other consumers; both nodes of a set want the same."""
        wanted = frozenset(self.random.sample(("", "a", "b", "c"), self.random.randint(1, 3)))
        for other in self.shape.tree:
            if other[0] == me[0]:
                self.interest[other] = wanted
        self.merge_interest()

    def merge_interest(self) -> None:
        """Let upper sets want at least what those below them want."""
        for _ in range(3):
            for me, uppers in self.uppers.items():
                for upper in uppers:
                    if upper != CORE and upper in self.interest and me in self.interest:
                        self.interest[upper] |= self.interest[me]

    # -- faults ------------------------------------------------------------------------------

    def restart(self, relay: Relay) -> None:
        """A relay loses what is not durable, and its connections."""
        self.start(relay)
        link = relay.me[0] << 32 | relay.me[1]
        for upper in self.uppers[relay.me]:
            for partition in range(len(relay.disks)):
                self.close(upper, partition, link)

    def close(self, upper: Child, partition: int, link: int) -> None:
        """The connection of a child is gone."""
        closed = LinkClosed(link)
        if upper == CORE:
            core = self.cores[partition]
            self._perform(CORE, partition, core.upper.handle(closed, self.now))
        else:
            self.handle(self.relays[upper], partition, closed)

    def lose_disk(self, relay: Relay) -> None:
        """A relay begins with empty disks."""
        relay.disks = [Disk() for _ in relay.disks]
        self.restart(relay)

    def promote(self, partition: int, lost: int) -> None:
        """A set without the newest committed items of the core is promoted."""
        core = self.cores[partition]
        cut = LogCut(core.promote(lost))
        self._perform(CORE, partition, core.upper.handle(cut, self.now))

    def log_moved(self, partition: int) -> None:
        """Let the core look whom it may serve."""
        core = self.cores[partition]
        self._perform(CORE, partition, core.upper.handle(LogMoved(), self.now))

    def draw_interest(self, me: Child) -> None:
        """Change what a set wants, and tell all, one after the other at any time."""
        self._draw_interest(me)
        for other, relay in self.relays.items():
            for partition in range(len(relay.disks)):
                delay = self.random.randint(0, 2_000)
                self.after(delay, "interest", other, partition, relay.first_number)

    # -- the end -----------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Return what is not as it must be once all is quiet."""
        found = []
        for me, relay in self.relays.items():
            if me == self.shape.cut_off:
                continue
            for partition, machine in enumerate(relay.machines):
                core, state = self.cores[partition], machine.state
                where = f"{me} partition {partition}"
                if state.end != core.end or state.lineage != core.lineage:
                    found.append(
                        f"Live: {where} ends at {state.end} of {state.lineage}, the core at "
                        f"{core.end} of {core.lineage}"
                    )
                    continue
                found += checkers.of_roster(core, state, core.end)
                if machine.durable_end != core.end:
                    found.append(f"Live: {where} is not durable")
                wanted: Tags = self.interest[me]
                if not state.filters or not covers(state.filters[-1].tags, wanted):
                    found.append(f"Live: {where} does not keep {wanted}")
            if not found:
                _, stamp = relay.readers.barrier()
                marks = [core.mark for core in self.cores[: self.joined]]
                least = min((mark.stamp for mark in marks if mark is not None), default=0)
                if stamp < least:
                    found.append(f"Live: {me} knows a mark of {stamp}, and not of {least}")
        return found
