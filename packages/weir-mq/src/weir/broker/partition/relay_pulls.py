"""What the leader of a partition serves to relays: the upper side of a hop, in the core.

`weir.relay.upper` decides what a pull is answered; here is what it serves from, and what carries
out its effects. Only what is committed and decided is served (docs/RELAYS.md, docs/adr/0108).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from weir.broker.records.partition import RelayHold, RelayHoldsStored
from weir.broker.replica.group import Group
from weir.broker.runtime.filtering import EXAMINED_MAX, Slices
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.reads import (
    MessageReading,
    PublishedReading,
    Reads,
    batches_in,
    read_messages,
)
from weir.broker.state.ranges import Ranges
from weir.broker.state.state import PartitionState
from weir.codec import Buffer
from weir.errors import BadRequest, DamagedRange, Refused, Unavailable
from weir.model.batch import Batch
from weir.model.ids import Address
from weir.model.limits import HOLDS_STORED_EVERY_MS
from weir.order.clock import Time
from weir.protocol.client.relays import AskRelay, RelayTold
from weir.relay.entries import HoldRow
from weir.relay.holds import Child, HoldLimits
from weir.relay.messages import (
    AnyMessage,
    AskFilter,
    Chunk,
    Mark,
    Pull,
    SayHold,
    encode_message,
)
from weir.relay.portion import (
    ANSWER_BYTES_MAX,
    ANSWER_ROWS_MAX,
    Plan,
    Portion,
    missing_chunks,
)
from weir.relay.ports import (
    FilterAsked,
    HoldSaid,
    LinkClosed,
    LogMoved,
    PortionLost,
    PortionRead,
    PullCame,
    ReadPortion,
    SendToChild,
    UpperEffect,
    UpperEvent,
)
from weir.relay.rows import (
    RosterEntry,
    Row,
    RowKind,
    RowsBuilder,
    StoredBatches,
    Tags,
    roster_entry,
    unpack_tags,
)
from weir.relay.upper import Upper

#: Relays say what they need each 10 s: by then a new leader has heard of those that live.
HEARD_WITHIN_MS = 30_000
#: So many damaged entries in a row are passed for one pull; the next pull passes the next ones.
DAMAGED_ENTRIES_MAX = 64
_BATCH, _MORE = int(RowKind.BATCH), int(RowKind.BATCH_MORE)
_SKIPPED, _VOID = int(RowKind.SKIPPED), int(RowKind.VOID)
_BATCHES = StoredBatches()


class OrderedPartition(Protocol):
    """A partition, as far as its relays know it."""

    def order(self) -> tuple[int, int]:
        """Return its barrier, and how many partitions its topic is of: see `Fetched`."""


class CoreSource:
    """A partition of the core, as relays are served from it: all messages, and all lineages."""

    __slots__ = ("_group", "_partition", "_roster", "_state")

    def __init__(self, group: Group, state: PartitionState, partition: OrderedPartition) -> None:
        """Serve what a state says is committed and decided."""
        self._group = group
        self._state = state
        self._partition = partition
        self._roster: list[RosterEntry] = []

    @property
    def is_open(self) -> bool:
        """The log of a partition has always begun."""
        return True

    @property
    def lineage(self) -> int:
        """How often the group went on without its voters."""
        return self._state.membership.lineage

    @property
    def forks(self) -> Sequence[tuple[int, int]]:
        """Where the lineages begin but the first."""
        return self._state.membership.forks

    @property
    def start(self) -> int:
        """What lies below was reclaimed."""
        return self._state.log_start

    @property
    def log_start(self) -> int:
        """The same: this is the core."""
        return self._state.log_start

    @property
    def end(self) -> int:
        """Up to where all is committed and decided."""
        return self._state.decided_offset

    @property
    def roster(self) -> Sequence[RosterEntry]:
        """An entry for each partition that joined the order, which only grows. Which message comes
        next to it is not kept, so it lies before all of them: what is told early does no harm.
        """
        for partition, _ in self._state.membership.joined[len(self._roster) :]:
            self._roster.append(roster_entry(len(self._roster), 0, partition + 1))
        return self._roster

    @property
    def mark(self) -> Mark | None:
        """The barrier as of now; None where none is known."""
        stamp, partitions = self._partition.order()
        # Partition 0 alone says how many there are; of the others nobody reads it.
        return Mark(max(partitions, 1), stamp, self.end) if stamp else None

    def age_ms(self, now_ms: int) -> int:
        """Return 0: this is the core."""
        return 0

    def fork_of(self, lineage: int) -> int:
        """Return the lowest offset that later lineages than this one took; -1 if there is none."""
        return self._state.membership.fork_of(lineage)

    def next_kept(self, offset: int) -> int:
        """Return the offset itself: nothing is missing amid the log."""
        return offset

    def reach(self, offset: int, tags: Tags) -> int:
        """Return the end: all that is committed may be served for any tags."""
        return max(self.end, offset)

    def covered_from(self, tags: Tags) -> int:
        """Return 0: all tags are kept."""
        return 0

    def plan(self, pull: Pull, until: int) -> Plan:
        """Return what is to be read for a pull, up to `until`."""
        credit = min(pull.credit, ANSWER_BYTES_MAX)
        tags = unpack_tags(pull.tags)
        return Plan(self._group.id, pull.offset, until, tags, credit, pull.last_chunk)

    def affordable(self, bytes_max: int) -> int:
        """Return the offset from which on no more than about so many bytes are held."""
        cut = self._group.log.reader.cut_by_size(self._group.id, bytes_max, lambda _: 0)
        return self.start if cut is None else max(cut[1], self.start)


class _Piece(NamedTuple):
    """What became of offsets [first, next): a batch, or a run that is skipped or void."""

    first: int
    next: int
    kind: int
    batch: Batch | None = None


class RelayPulls:
    """Answers the relays of one partition while this node leads it."""

    __slots__ = (
        "_callers", "_group", "_left", "_links", "_of_child", "_outbox", "_reads", "_since_ms",
        "_state", "_stored_ms", "_time", "_upper",
    )  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, reads: Reads, outbox: Outbox, time: Time,
        partition: OrderedPartition,
    ) -> None:  # fmt: skip
        """Serve a partition; no relay has asked yet."""
        self._group = group
        self._state = state
        self._reads = reads
        self._outbox = outbox
        self._time = time
        self._upper = Upper(group.id, CoreSource(group, state, partition), HoldLimits())
        #: Each request is a link of its own: who asked, by number; and which pull a node waits for.
        self._links = 0
        self._callers: dict[int, tuple[Caller, Address]] = {}
        self._of_child: dict[tuple[int, int], int] = {}
        now = self._since_ms = self._stored_ms = time.monotonic_ms()
        #: Whether a relay disconnected since its hold was stored.
        self._left = False
        rows = [
            HoldRow(one.brokerset, one.node, one.offset, now - one.silent_ms)
            for one in state.membership.relay_holds
        ]
        self._upper.holds.restore(rows, 0, 0)

    @property
    def waiting(self) -> bool:
        """Whether a relay waits."""
        return bool(self._callers)

    def take(self, caller: Caller, request: AskRelay, message: AnyMessage) -> None:
        """Answer a relay's message, now or once there is something to tell."""
        self._links += 1
        link = self._links
        match message:
            case Pull():
                child = message.brokerset, message.node
                self._refuse(self._of_child.get(child, 0), "the same node pulls again")
                self._callers[link] = caller, request.address
                self._of_child[child] = link
                self._do(PullCame(link, message))
            case AskFilter():
                self._callers[link] = caller, request.address
                self._do(FilterAsked(link, message))
            case SayHold():
                self._do(HoldSaid(message))
                self._outbox.reply(caller, RelayTold(request.address))
            case _:
                kind = type(message).__name__
                raise BadRequest(f"a relay does not send {kind}: upper nodes send it to relays")

    def look(self) -> None:
        """Answer pulls that wait for messages which are here by now, or that have waited long
        enough.
        """
        if self._callers:
            self._do(LogMoved())

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        for link in [link for link, (one, _) in self._callers.items() if one.session == session]:
            self._forget(link)
            self._left = True

    def end(self, error: Refused) -> None:
        """This node leads no more, or the topic is gone: refuse all who wait."""
        for link, (caller, _) in list(self._callers.items()):
            self._forget(link)
            self._outbox.refuse(caller, error)

    # -- holds -------------------------------------------------------------------------------

    def keep(self, relays: Mapping[Child, HoldLimits]) -> int:
        """Return from which offset on all is kept for these relays, for each within its limits.

        Nothing goes while a new leader has not heard of all of them: what a relay said to the
        leader before may not be in the log.
        """
        holds, now = self._upper.holds, self._time.monotonic_ms()
        holds.limit(relays)
        source = self._upper.source
        kept, passed = holds.keep(now, source.end, source.affordable)
        if passed:
            self._outbox.counts.partition(self._group.id).holds_passed += len(passed)
        return source.start if relays and now - self._since_ms < HEARD_WITHIN_MS else kept

    def holds_to_store(self) -> RelayHoldsStored | None:
        """Return what an entry is to say of holds: of relays that came or disconnected since the
        last one, and of all now and then; None if that is not due.
        """
        holds, now = self._upper.holds, self._time.monotonic_ms()
        rows = tuple(RelayHold(*child, *hold) for child, *hold in holds.silent(now))
        stored = {one[:2] for one in self._state.membership.relay_holds}
        is_other = {one[:2] for one in rows} != stored
        is_due = holds.changed and now - self._stored_ms >= HOLDS_STORED_EVERY_MS
        if not (is_other or is_due or (self._left and rows)):
            return None
        self._stored_ms, self._left, holds.changed = now, False, False
        return RelayHoldsStored(rows)

    def _forget(self, link: int) -> None:
        self._callers.pop(link, None)
        for child in [child for child, one in self._of_child.items() if one == link]:
            del self._of_child[child]
        self._do(LinkClosed(link))

    def _refuse(self, link: int, why: str) -> None:
        if (found := self._callers.get(link)) is not None:
            self._forget(link)
            self._outbox.refuse(found[0], Unavailable(f"{why}: this pull gets no more answers"))

    def _do(self, event: UpperEvent) -> None:
        for effect in self._upper.handle(event, self._time.monotonic_ms()):
            self._carry_out(effect)

    def _carry_out(self, effect: UpperEffect) -> None:
        match effect:
            case SendToChild(link, message, data):
                caller, address = self._callers.pop(link)
                for child in [child for child, one in self._of_child.items() if one == link]:
                    del self._of_child[child]
                self._outbox.reply(caller, RelayTold(address, encode_message(message, data)))
            case ReadPortion(ticket, plan, _):
                self._read(ticket, plan)

    # -- reading -----------------------------------------------------------------------------

    def _read(self, ticket: int, plan: Plan) -> None:
        reading = self._reading(plan)
        if reading is None:
            self._do(PortionRead(ticket, None))
            return
        voids = Ranges(self._state.voids.within(plan.first, reading.next_offset))

        def read(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            if isinstance(failure, DamagedRange):
                self._meet_damage(ticket, plan, reading)
                return
            if failure is not None:
                self._do(PortionRead(ticket, None))
                return
            staged = reading if isinstance(reading, PublishedReading) else None
            pieces = _pieces(plan, reading, payloads, voids)
            is_alike, is_cut = staged is not None, bool(staged and staged.is_cut(payloads))
            portion, chunks = portion_of(plan, pieces, self._reads.slices, is_alike, is_cut)
            if chunks:
                self._read_chunks(ticket, plan, chunks, pieces[0].next)
            else:
                self._do(PortionRead(ticket, portion))

        self._reads.start(reading, read)

    def _reading(self, plan: Plan) -> MessageReading | None:
        group = self._group
        return read_messages(
            group.log.reader, group.id, self._state.staging, plan.first, plan.credit,
            group.node.log.applied, plan.until, plan.tags,
        )  # fmt: skip

    def _read_chunks(self, ticket: int, plan: Plan, indexes: Sequence[int], behind: int) -> None:
        """Read chunks of the value at the first offset of a plan; its batch ends at `behind`."""
        reading = self._group.log.reader.read_entries(
            self._group.id, indexes, plan.credit, self._group.node.log.committed
        )
        if reading is None:
            self._do(PortionRead(ticket, None))
            return

        def read(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            if isinstance(failure, DamagedRange):  # nobody can have the value
                self._do(PortionLost(ticket, behind))
                return
            if failure is not None or not payloads:
                self._do(PortionRead(ticket, None))
                return
            told = tuple(Chunk(at, len(one)) for at, one in zip(indexes, payloads, strict=False))
            portion = Portion(plan.first, plan.first, (), told, tuple(payloads))
            self._do(PortionRead(ticket, portion))

        self._reads.start(reading, read)

    # -- damage ------------------------------------------------------------------------------

    def _meet_damage(self, ticket: int, plan: Plan, reading: MessageReading) -> None:
        """The first entry to be read is damaged, here and on all replicas: tell what lies before
        it, which the tags of the plan exclude, or else up to where messages are lost.
        """
        sound = plan.first
        for first, behind in reading.skipped:
            sound = max(sound, behind) if first <= sound else sound
        if sound > plan.first:
            self._read(ticket, plan._replace(until=min(sound, plan.until)))
        else:
            every = plan._replace(tags=None, credit=1)  # one entry at a time
            self._pass_damage(ticket, every, plan.first, DAMAGED_ENTRIES_MAX)

    def _pass_damage(self, ticket: int, plan: Plan, lost: int, left: int) -> None:
        """Look for the end of the damage, of which messages below `lost` are known to be a part."""
        one = plan._replace(first=lost)
        reading = self._reading(one) if left and lost < plan.until else None
        if reading is None:
            self._end_of_damage(ticket, plan, lost)
            return
        behind = min(reading.next_offset, plan.until)

        def read(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            if isinstance(failure, DamagedRange):
                self._pass_damage(ticket, plan, behind, left - 1)
            else:
                self._end_of_damage(ticket, plan, lost)

        self._reads.start(reading, read)

    def _end_of_damage(self, ticket: int, plan: Plan, lost: int) -> None:
        is_mended = lost == plan.first  # meanwhile: the next pull finds what is there
        self._do(PortionRead(ticket, None) if is_mended else PortionLost(ticket, lost))


def _pieces(
    plan: Plan, reading: MessageReading, payloads: Sequence[Buffer], voids: Ranges
) -> list[_Piece]:
    """Return what was read, passed over or void, by offset; nothing is said twice."""
    behind = min(reading.reached(payloads), plan.until)
    found: list[_Piece] = []
    for batch in batches_in(payloads):
        first, last = batch.header.first_offset, batch.header.next_offset
        if last > plan.first and first < behind and not voids.covers(last - 1, last):
            found.append(_Piece(max(first, plan.first), min(last, behind), _BATCH, batch))
    passed = Ranges([(max(a, plan.first), min(b, behind)) for a, b in reading.skipped])
    for first, last in voids.within(plan.first, behind):
        passed.discard(first, last)
        found.append(_Piece(first, last, _VOID))
    found += [_Piece(first, last, _SKIPPED) for first, last in passed]
    return sorted(found, key=lambda piece: piece.first)


def portion_of(
    plan: Plan, pieces: Sequence[_Piece], slices: Slices, is_alike: bool, is_cut: bool
) -> tuple[Portion | None, list[int]]:  # fmt: skip
    """Return what a pull is answered, or the Raft indexes of the chunks that have to go first; None
    and none where the log does not hold what it should. Several batches have one stamp if they are
    `is_alike`, and more of the last stamp follow if it `is_cut`.
    """
    built, examined = RowsBuilder(plan.first), 0
    for at, piece in enumerate(pieces):
        if piece.first != built.next:
            break  # something is missing here, which the next pull is told
        if len(built.rows) >= ANSWER_ROWS_MAX or (examined >= EXAMINED_MAX):
            break
        if (batch := piece.batch) is None:
            (built.void if piece.kind == _VOID else built.skip)(piece.next - piece.first)
            continue
        kept: Buffer | None = batch.view
        if plan.tags is not None:
            part = slices.part(batch, plan.tags, plan.group)
            kept, examined = part.bytes or None, examined + part.examined
        size = 0 if kept is None else len(kept)
        if built.size and built.size + size > plan.credit:
            break
        runs = () if kept is None else _BATCHES.chunks(kept)
        missing = missing_chunks(runs, plan.last_chunk if piece.first == plan.first else 0)
        if missing:
            if piece.first > plan.first:
                break  # they come first, in an answer of their own
            return None, missing
        is_last = piece.next == batch.header.next_offset and not (
            is_alike and _goes_on(pieces, at, is_cut)
        )
        kind = _BATCH if is_last else _MORE
        built.add(Row(kind, piece.next - piece.first, batch.header.stamp, size), kept)
    if built.next == plan.first:
        return None, []
    portion = Portion(plan.first, built.next, tuple(built.rows), (), tuple(built.data))
    return portion, []


def _goes_on(pieces: Sequence[_Piece], at: int, is_cut: bool) -> bool:
    """Whether more batches of the stamp of a piece follow; behind the last one if it `is_cut`."""
    here = pieces[at].batch
    assert here is not None
    for piece in pieces[at + 1 :]:
        if piece.batch is not None:
            return piece.batch.header.stamp == here.header.stamp
    return is_cut
