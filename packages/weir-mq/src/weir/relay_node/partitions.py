"""The partitions of a relay node: machines of `weir.relay.partition` over one store. No I/O: what
is to be sent to the core is returned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from weir.model.limits import KIB, MIB
from weir.relay.holds import Child
from weir.relay.lower import Me, PullPace
from weir.relay.messages import Mark, Pull
from weir.relay.partition import RelayPartition, Settings
from weir.relay.ports import (
    Alarm,
    AnswerCame,
    AppendEntry,
    ChildrenSet,
    Effect,
    Event,
    InterestSet,
    Moved,
    ReadPortion,
    ReclaimBelow,
    RetentionSet,
    SendToChild,
    SendToUpper,
    Synced,
    Ticked,
    TopicEnded,
    UpperNode,
    UppersSet,
)
from weir.relay.rows import StoredBatches, Tags
from weir.relay.state import RelayState
from weir.relay_node.children import ChildLinks
from weir.relay_node.store import RelayStore
from weir.relay_node.uppers import Asked

log = logging.getLogger(__name__)

#: What all pulls together may bring at once: each partition's credit is a share of it.
CREDIT_BYTES = 64 * MIB
_CREDIT_LEAST = 64 * KIB
_CREDIT_MOST = 4 * MIB


class Held(msgspec.Struct):
    """A partition, and what readers are told beside its messages: the core's end as far as upper
    nodes said it, and the newest mark.
    """

    machine: RelayPartition
    #: When an upper node last answered a pull, and when all was here that it had, in ms.
    heard_ms: int
    complete_ms: int
    head: int = 0
    mark: Mark | None = None
    #: How many answers of the core came since the start.
    answers: int = 0
    #: Where the log of the core begins, as the upper node said that answered last; -1 before.
    log_start: int = -1
    #: How many messages the last answer brought.
    brought: int = 0
    pace: PullPace = msgspec.field(default_factory=PullPace)
    #: Since when, in seconds, the disk has not given what readers ask for; 0 while it does.
    unread_since: float = 0.0
    #: How many messages were here, since the start, that later lineages do not have.
    cut: int = 0

    @property
    def state(self) -> RelayState:
        """What the log says."""
        return self.machine.state

    def hear(self, told: AnswerCame) -> None:
        """Take what an answer says of the end of the log. That of the core counts."""
        if told.upper.is_core:
            self.head = told.answer.head
            self.answers += 1
        self.head = max(self.head, told.answer.head)
        self.brought = told.answer.next - told.answer.first

    def stored(self, now_ms: int) -> None:
        """What an answer brought is here."""
        self.heard_ms = now_ms
        if self.state.end >= self.head:
            self.complete_ms = now_ms

    @property
    def partitions(self) -> int:
        """How many partitions belong to the order, for a partition 0: as entries of the roster say,
        which come with the messages that need them; and the mark, while there are no entries.
        """
        return max(self.state.partitions, self.mark.partitions if self.mark is not None else 0)

    @property
    def committed(self) -> int:
        """The core's end, as far as it is known here."""
        return max(self.head, self.state.end)

    @property
    def is_behind(self) -> bool:
        """Whether more is known to come, or nobody has said yet how much there is."""
        return not self.answers or not self.state.begun or self.state.end < self.head


class Outcome(msgspec.Struct):
    """What came of an event: what to send to upper nodes, and to do for relays below, and whether
    the topic is gone or readers have something new.
    """

    sends: list[SendToUpper] = msgspec.field(default_factory=list)
    children: list[SendToChild | ReadPortion] = msgspec.field(default_factory=list)
    is_over: bool = False
    moved: bool = False
    #: Whether messages that were here were taken back, for a lineage ended.
    is_cut: bool = False


class RelayPartitions:
    """All partitions that this node relays, by the number of their group, and the relays below that
    wait for something of them.
    """

    def __init__(self, store: RelayStore, me: Me, core: UpperNode, now_ms: int) -> None:
        """Go on with what the store holds; nothing is pulled before `open`."""
        self._store = store
        self._me = me
        self._core = core
        #: Pulls are numbered from the time of the start on, so that none is used twice.
        self._first_number = now_ms
        self.held: dict[int, Held] = {}
        self.children = ChildLinks()
        #: By upper node, how many bytes of messages came from it.
        self.pulled: dict[UpperNode, int] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.held))

    def open(
        self, group: int, tags: Tags, uppers: tuple[UpperNode, ...], now_ms: int
    ) -> list[SendToUpper]:  # fmt: skip
        """Begin to pull a partition from the core, and from others before it, unless that is under
        way; return what to send.
        """
        if group in self.held:
            return []
        state = self._store.states.pop(group, None) or RelayState()
        settings = Settings(self._me._replace(group=group), first_number=self._first_number)
        machine = RelayPartition(settings, state, StoredBatches(), now_ms)
        self.held[group] = Held(machine, now_ms, now_ms)
        sends: list[SendToUpper] = []
        for event in (UppersSet((*uppers, self._core)), InterestSet(tags)):
            sends += self.handle(group, event, now_ms).sends
        return sends

    def place(
        self, group: int, uppers: tuple[UpperNode, ...], children: ChildrenSet | None, now_ms: int
    ) -> Outcome:
        """Pull from others from now on, the core behind them; `children` pull from here, None if
        nobody knows.
        """
        outcome = self.handle(group, UppersSet((*uppers, self._core)), now_ms)
        if children is not None:
            more = self.handle(group, children, now_ms)
            outcome.sends += more.sends
            outcome.children += more.children
        return outcome

    def close(self, group: int) -> None:
        """The topic is gone, or not wanted any more: forget what is here of it."""
        self.held.pop(group, None)
        self._store.drop_group(group)

    def handle(self, group: int, event: Event, now_ms: int) -> Outcome:
        """Take an event of a partition; store what it brings, and return the rest."""
        held, outcome = self.held[group], Outcome()
        lineage, end = held.state.lineage, held.state.end
        effects: list[Effect] = []
        if isinstance(event, AnswerCame):
            held.hear(event)
            self.pulled[event.upper] = self.pulled.get(event.upper, 0) + len(event.data)
            if event.answer.log_start != held.log_start:  # what the upper node keeps is kept here
                held.log_start = event.answer.log_start
                effects += held.machine.handle(RetentionSet(held.log_start), now_ms)
        for effect in effects + held.machine.handle(event, now_ms):
            match effect:
                case AppendEntry():
                    self._store.append(group, effect)
                case SendToUpper(upper, message):
                    told = self._told(message)
                    outcome.sends.append(SendToUpper(upper, told))
                case SendToChild() | ReadPortion():
                    outcome.children.append(effect)
                case Moved():
                    outcome.moved = True
                    outcome.is_cut = self._moved(held, effect, lineage, end) or outcome.is_cut
                case ReclaimBelow(index):
                    self._store.drop_below(group, index)
                case Alarm(kind, text):
                    log.warning("%s: group %d: %s", kind, group, text)
                case TopicEnded():
                    outcome.is_over = True
        if isinstance(event, AnswerCame):
            held.stored(now_ms)
        return outcome

    def _moved(self, held: Held, moved: Moved, lineage: int, end: int) -> bool:
        """Take note of what is here now, where [..., end) of a lineage was before; return whether
        messages were cut off.
        """
        if moved.cut_at >= 0:
            held.mark, held.head = None, 0
            held.cut += max(end - held.state.fork_of(lineage), 0)
        for mark in moved.marks:
            held.mark = mark
        return moved.cut_at >= 0

    def _told(self, message: Asked) -> Asked:
        """Return what an upper node is told: a pull with this partition's share of the credit."""
        if not isinstance(message, Pull):
            return message
        share = CREDIT_BYTES // max(len(self.held), 1)
        credit = min(max(share, _CREDIT_LEAST), _CREDIT_MOST, message.credit)
        return msgspec.structs.replace(message, credit=credit)

    def pull_delay(self, group: int, now: float) -> float:
        """Return in how many seconds a pull is to be sent; `now` is in seconds."""
        held = self.held.get(group)
        if held is None:
            return 0.0
        return held.pace.delay(now, catches_up=held.head - held.state.end > held.brought)

    def synced(self, tokens: tuple[object, ...], now_ms: int) -> list[SendToUpper]:
        """A flush is durable, which took entries (group, index); return what to send."""
        newest: dict[int, int] = {}
        for token in tokens:
            if isinstance(token, tuple):
                newest[token[0]] = token[1]
        sends: list[SendToUpper] = []
        for group, index in newest.items():
            if group in self.held:
                sends += self.handle(group, Synced(index), now_ms).sends
        return sends

    def tick(self, group: int, now_ms: int) -> Outcome:
        """The clock of a partition went on."""
        return self.handle(group, Ticked(), now_ms)

    def states(self) -> dict[int, RelayState]:
        """Return the state of each partition, for a checkpoint; of those, too, that nobody opened
        since the start.
        """
        return self._store.states | {group: held.state for group, held in self.held.items()}


class Lag(NamedTuple):
    """How far a partition is behind: in messages, about so many bytes, and seconds; and the age of
    the last news in seconds.

    How far a relay lags is known as of the last word of its upper nodes. Bytes are an estimate: as
    many messages as it lags, of the mean size of those that it holds. The seconds are those since
    it last had all that the upper node had, so they grow while nobody answers, too.
    """

    messages: int
    bytes: int
    seconds: float
    news_seconds: float


def lag_of(held: Held, now_ms: int) -> Lag:
    """Return how far a partition is behind."""
    state = held.state
    messages = max(held.head - state.end, 0)
    kept = state.end - state.start
    each = state.ranges.total / kept if kept else 0.0
    behind = max(now_ms - held.complete_ms, 0) / 1_000
    heard = max(now_ms - held.heard_ms, 0) / 1_000
    return Lag(messages, int(messages * each), behind, heard)


class ChildLag(NamedTuple):
    """How far a node below is behind with a topic: in messages, and seconds since its last word."""

    messages: int
    silent_seconds: float


def children_of(rows: Iterable[Held], now_ms: int) -> dict[Child, ChildLag]:
    """Return of each node below how far it is behind with the partitions of a topic: what it has
    not made durable counts, and the partition counts of which it was silent for longest.
    """
    found: dict[Child, ChildLag] = {}
    for held in rows:
        for child, offset, silent_ms in held.machine.upper.holds.silent(now_ms):
            before = found.get(child, ChildLag(0, 0.0))
            messages = before.messages + max(held.state.end - offset, 0)
            found[child] = ChildLag(messages, max(before.silent_seconds, silent_ms / 1_000))
    return found


def tags_kept(held: Held) -> int:
    """Return how many tags a partition keeps from its end on; -1: all messages."""
    now = held.state.filter_at(held.state.end)
    return -1 if now is None or now.tags is None else len(now.tags)
