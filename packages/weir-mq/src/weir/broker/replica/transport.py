"""The other replicas of the groups here: what is sent to them, what they send, and the time that
passes for all (`weir_raft.Multi`).

A message to where no link leads is dropped: Raft sends what matters again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import weir_raft as raft
from weir.broker.api.effects import EndLink, ReplicaHalted, SendToPeer
from weir.broker.api.events import Findings, LinkClosed, LinkOpened, RegistryRejoins
from weir.broker.records.entries import stored_in
from weir.broker.records.registry import LevelRaised
from weir.broker.replica.catch_up import CatchUpPermits
from weir.broker.replica.disk_room import FullDisks
from weir.broker.replica.frames import (
    BadMessage,
    ClockTold,
    FrameKind,
    FullTold,
    ImpossibleMessage,
    Told,
    pack,
    pack_link,
    unpack,
    unpack_link,
)
from weir.broker.replica.group import Group
from weir.broker.replica.node_state import TELL_EVERY_MS, Clocks, PeerLinks
from weir.broker.replica.refill import Refill
from weir.broker.runtime.outbox import Outbox
from weir.errors import Damaged
from weir.model.ids import INCARNATION_BITS, REGISTRY_GROUP, SHARD_BITS, place_node
from weir.order.clock import STAMP_FAR, Time, milliseconds_of, stamp_at
from weir.protocol.link import LinkFrame

#: So many candidates of groups that are not here yet are remembered.
_EARLY_MAX = 4_096
_EARLY_MS = 2_000
#: Plain numbers: each frame is compared with them.
_BEAT, _REFILL_ASK = int(FrameKind.BEAT), int(FrameKind.REFILL_ASK)
#: These carry entries or a state, and may take long.
_LARGE = (raft.Append, raft.InstallSnapshot)


#: No group holds more elections while one of its nodes is away: four billion.
_TERMS_AHEAD_MAX = 1 << 32
#: No system is promoted more often while one of its nodes is away.
_LINEAGES_AHEAD_MAX = 64
#: Nor does a log grow by more entries meanwhile.
_INDEXES_AHEAD_MAX = 1 << 40
#: A promised stamp follows the clock of the leader that asked for it.
_FENCE_AHEAD_MS_MAX = 24 * 3_600 * 1_000
#: A clock that is wrong by years is told all the same, and found out; a stamp has room for it.
_WALL_MS_MAX = milliseconds_of(STAMP_FAR)


class EarlyVotes:
    """Candidates of groups that are not here yet: a group is opened on its nodes one after the
    other, and its first election must not wait for the second.
    """

    __slots__ = ("_requests", "_time")

    def __init__(self, time: Time) -> None:
        """Begin with none."""
        self._time = time
        #: By group and candidate, what it asked, and when.
        self._requests: OrderedDict[tuple[int, int], tuple[int, LinkFrame]] = OrderedDict()

    def keep(self, sender: int, frame: LinkFrame) -> None:
        """Remember what a candidate asks, and forget the oldest if there are too many."""
        key = frame.group, sender
        self._requests[key] = self._time.monotonic_ms(), frame
        self._requests.move_to_end(key)
        if len(self._requests) > _EARLY_MAX:
            self._requests.popitem(last=False)

    def take(self, group: int) -> list[LinkFrame]:
        """Return what was asked of a group of late, once."""
        found = [key for key in self._requests if key[0] == group]
        since = self._time.monotonic_ms() - _EARLY_MS
        return [frame for when, frame in map(self._requests.pop, found) if when >= since]


class NodeStateExchange:
    """Tells the nodes that links lead to what clock and disks of this one say, and hears theirs."""

    __slots__ = ("_disks", "_links", "_outbox", "_tell_ms", "_time", "_told_need")

    def __init__(self, links: PeerLinks, disks: FullDisks, outbox: Outbox, time: Clocks) -> None:
        """Have told nobody yet."""
        self._links = links
        self._disks = disks
        self._outbox = outbox
        self._time = time
        self._tell_ms = 0
        #: Whether it was told that this node takes no publishes.
        self._told_need = False

    def tell_if_due(self, now_ms: int) -> None:
        """Tell all, if it is time."""
        needs = bool(self._disks.needed_bytes)
        # At once, for the little room that is left goes quickly.
        if now_ms >= self._tell_ms or needs > self._told_need:
            self._told_need = needs
            self._tell_ms = now_ms + TELL_EVERY_MS
            for place in sorted(self._links.up):
                self.tell(place)

    def tell(self, place: int) -> None:
        """Tell the shard at a place."""
        told = pack_link(ClockTold(self._time.own_ms()))
        self._outbox.put(SendToPeer(place, True, told))
        if self._disks.is_full or self._disks.needed_bytes:
            full = pack_link(FullTold(self._disks.needed_bytes))
            self._outbox.put(SendToPeer(place, True, full))

    def take(self, place: int, told: ClockTold | FullTold) -> None:
        """Take what a shard of another node tells. Raises `ImpossibleMessage`."""
        if isinstance(told, FullTold):
            self._disks.told(place, told.needed_bytes)
        elif 0 <= told.wall_ms <= _WALL_MS_MAX:
            self._time.told(place_node(place), told.wall_ms)
        else:
            raise ImpossibleMessage(f"a clock of {told.wall_ms:,} ms makes no stamps")


class PromiseLimit:
    """How far ahead of this node's clocks a promised stamp may lie."""

    __slots__ = ("_stamp", "_time")

    def __init__(self, time: Clocks) -> None:
        """Look it up when it is needed."""
        self._time = time
        #: Requests for a promise up to this stamp are credible.
        self._stamp = 0

    def forget(self) -> None:
        """Time has passed: look it up anew."""
        self._stamp = 0

    def check(self, fence: int) -> None:
        """Raise `ImpossibleMessage` for a promise that lies too far ahead."""
        if fence <= self._stamp:
            return
        latest = max(self._time.wall_ms(), self._time.own_ms()) + _FENCE_AHEAD_MS_MAX
        self._stamp = stamp_at(latest)
        if fence > self._stamp:
            raise ImpossibleMessage(
                "a promised stamp is more than a day ahead of this clock: see that the clocks of "
                "both nodes are right"
            )


class Peers:
    """Joins the groups of a shard to their replicas on other nodes."""

    __slots__ = ("_early", "_election_ms", "_findings", "_groups", "_level", "_links", "_multi",
                 "_node", "_node_states", "_outbox", "_permits", "_promise_limit", "_refill",
                 "_time", "late_ms")  # fmt: skip

    def __init__(
        self,
        node: int,
        level: int,
        election_ms: int,
        links: PeerLinks,
        multi: raft.Multi,
        permits: CatchUpPermits,
        refill: Refill,
        disks: FullDisks,
        outbox: Outbox,
        time: Clocks,
        findings: Findings,
    ) -> None:
        """Be `node`, which reads up to format level `level`, and is joined to others by `links`."""
        self._election_ms = election_ms
        self._level = level
        self._node = node
        self._links = links
        self._multi = multi
        self._permits = permits
        self._refill = refill
        self._node_states = NodeStateExchange(links, disks, outbox, time)
        self._promise_limit = PromiseLimit(time)
        self._outbox = outbox
        self._time = time
        self._findings = findings
        self._groups: dict[int, Group] = {}
        #: When so much time has passed unnoticed that others may have chosen new leaders.
        self.late_ms = time.monotonic_ms() + election_ms
        self._early = EarlyVotes(time)

    # -- groups ------------------------------------------------------------------------------

    def add(self, group: Group) -> None:
        """A group runs here from now on: it hears what came too early for it."""
        self._groups[group.id] = group
        if group.damage is not None:
            return  # it takes no part
        self._multi.add(group.id, group.node)
        for frame in self._early.take(group.id):
            message = unpack(frame)
            with suppress(ImpossibleMessage):
                _check(group.node, message)
                group.step(message)

    def stopped(self, group: int, halt: Damaged, error: Exception) -> None:
        """A group here met what it cannot apply: from now on it only listens."""
        self._multi.remove(group)
        self._permits.forget(group)
        self._refill.forget(group)  # what it lacks comes back with all else, to another voter
        self._outbox.counts.replicas_halted += 1
        self._outbox.put(ReplicaHalted(group, str(halt), error))

    def remove(self, group: int) -> None:
        """A group is gone from here."""
        self._groups.pop(group, None)
        self._permits.forget(group)
        self._refill.forget(group)
        self._multi.remove(group)

    # -- links -------------------------------------------------------------------------------

    def handle(self, event: LinkOpened | LinkClosed) -> None:
        """Take an event of a link."""
        match event:
            case LinkOpened(place, shards):
                self._links.opened(place, shards)
                # Before any vote: a leader that is elected knows all their clocks.
                self._node_states.tell(place)
                self._multi.link_up(place)
            case LinkClosed(place):
                self._links.closed(place)
                self._multi.link_down(place)
        self._process_active()

    def send(self, group: int, messages: Sequence[raft.Message]) -> None:
        """Send messages to the replicas that they name."""
        links = self._links
        for message in messages:
            place = links.places.get((group, message.to)) or links.place_of(group, message.to)
            if place in links.up:
                quick = not isinstance(message, _LARGE)
                effect = SendToPeer(place, quick, pack(group, message))
                self._outbox.effects.append(effect)  # no peer's welcome waits for this

    def received(self, place: int, frames: Sequence[LinkFrame]) -> None:
        """Take what a shard of another node sent."""
        of_all = False
        for frame in frames:
            try:
                if frame.kind >= _BEAT:
                    of_all = True
                    self._link_message(place, unpack_link(frame))
                elif frame.kind >= _REFILL_ASK:
                    self._refill.take(place, frame)
                else:
                    self._message(place, frame)
            except ImpossibleMessage as error:
                self._end(place, str(error))
                break
            except BadMessage:
                self._outbox.counts.bad_frames += 1
        if of_all:  # a message to one group has been handled with it
            self._process_active()

    def _end(self, place: int, reason: str) -> None:
        self._outbox.counts.bad_frames += 1
        self._outbox.put(EndLink(place, reason))

    def _link_message(self, place: int, message: Told) -> None:
        if isinstance(message, ClockTold | FullTold):
            self._node_states.take(place, message)
        else:
            self._check_link(message)
            self._multi.step_link(place, message)

    def _check_link(self, message: raft.LinkMessage) -> None:
        """Raise `ImpossibleMessage` for a term or a promise that cannot be true."""
        self._promise_limit.check(message.fence)
        rows: Sequence[tuple[int, ...]]
        rows = message.led or () if isinstance(message, raft.Beat) else message.dropped
        for number, term, *_ in rows:
            if (group := self._groups.get(number)) is not None:
                _check_term(group.node, term)

    def _message(self, place: int, frame: LinkFrame) -> None:
        group, message = self._groups.get(frame.group), unpack(frame)
        # As `node_of` and `place_node` tell: each message is asked for both its ends.
        sender, to = message.sender >> INCARNATION_BITS, message.to >> INCARNATION_BITS
        if sender != place >> SHARD_BITS or to != self._node:
            raise BadMessage("a message of another node than the one at the other end")
        if isinstance(message, raft.VoteReply):
            self._promise_limit.check(message.fence)
        if group is not None and group.damage is not None:
            self._overhear(group, message)
        elif group is not None:
            if message.to == group.voter:
                _check(group.node, message)
                if group.id == REGISTRY_GROUP:
                    _check_level(message, self._level)
                if not isinstance(message, raft.InstallSnapshot):
                    group.step(message)
                elif why := group.offer(message, partial(self._end, place)):
                    raise ImpossibleMessage(why)
        elif frame.kind == FrameKind.VOTE_REQUEST:
            self._early.keep(message.sender, frame)

    def _overhear(self, group: Group, message: raft.Message) -> None:
        """Let a group that takes no part hear what is sent to it."""
        if group.id == REGISTRY_GROUP and message.to > group.voter:
            if group.knows_its_voter:
                self._findings.append(RegistryRejoins(message.to))
                return
            group.voter = message.to
        group.rejoin.take(message)

    # -- time --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let time pass for all groups."""
        now = self._time.monotonic_ms()
        late_ms, self.late_ms = self.late_ms, now + self._election_ms
        elapsed = self.late_ms - late_ms
        self._promise_limit.forget()
        self._permits.free_overdue()
        self._refill.ask_again()
        self._time.look()
        self._node_states.tell_if_due(now)
        if elapsed > 0:
            self._multi.tick(elapsed)
            self._process_active()

    def send_beats(self) -> None:
        """Send the beats that are due, after all that was said to groups one by one; some link must
        be up, or they would be lost.
        """
        links = self._links.up
        for place, message in self._multi.take_beats():
            if place in links:
                self._outbox.put(SendToPeer(place, True, pack_link(message)))

    def _process_active(self) -> None:
        for id in self._multi.take_active():
            self._groups[id].process_ready()


def _check_level(message: raft.Message, level: int) -> None:
    """Raise `ImpossibleMessage` for an entry that lets what is not read here be written."""
    for entry in message.entries if isinstance(message, raft.Append) else ():
        record = stored_in(entry).change
        if isinstance(record, LevelRaised) and record.level > level:
            raise ImpossibleMessage(
                f"an entry came that was written by a newer release of weir (level "
                f"{record.level:,}, this one reads up to {level}): upgrade this node"
            )


def _check_term(node: raft.Node, term: int) -> None:
    # What is not above the bound alone is not asked of the node: as nearly every term.
    if term <= _TERMS_AHEAD_MAX:
        return
    lineage, own = raft.lineage_of(term), node.lineages.current
    known = node.term if lineage == own else raft.first_term(lineage)
    if lineage > own + _LINEAGES_AHEAD_MAX or term > known + _TERMS_AHEAD_MAX:
        raise ImpossibleMessage(f"term {term:,} is told, where term {node.term:,} is known")


def _check(node: raft.Node, message: raft.Message) -> None:
    """Raise `ImpossibleMessage` for what no replica that follows Raft says to this one."""
    if message.term > _TERMS_AHEAD_MAX:
        _check_term(node, message.term)
    if isinstance(message, raft.AppendReply):  # as half of them are
        return
    terms, index = [message.term], 0
    match message:
        case raft.VoteRequest():
            terms.insert(0, message.last_term)
            index = message.last_index
        case raft.Append():
            terms = [message.prev_term]
            for entry in message.entries:
                terms.append(entry.term)
            terms.append(message.term)
            index = max(message.commit, message.prev_index)
        case raft.InstallSnapshot():
            meta = message.snapshot
            terms = [meta.base_term, meta.term, message.term]
            index = meta.index
            if meta.base_index > meta.index or message.position > meta.size:
                raise ImpossibleMessage("a snapshot begins behind its end")
    if sorted(terms) != terms:
        raise ImpossibleMessage("the terms of its log do not rise to the term of its sender")
    if index > _INDEXES_AHEAD_MAX and index > node.log.last_index + _INDEXES_AHEAD_MAX:
        raise ImpossibleMessage(
            f"entry {index:,} is told of, where the log ends with {node.log.last_index:,}"
        )
