"""Many groups over few links: who is due, and one heartbeat a link instead of one a group.

A leader's peers are told of its leaderships as a set, in full whenever that changes; from then on
one small beat and its answer stand for all of them. While beats come, a follower keeps no time of
its own; while they are answered, a leader that has nothing to send keeps none either. So groups
where nothing happens cost nothing. The rules are those of a node alone: contact with a leader
(§3.4), with a majority (§6.2), and the round before a read (§6.4) count beats and answers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from weir_raft.config import NEVER, Clock, Contact, NodeContext, Promise
from weir_raft.errors import HostError
from weir_raft.groups.link import Link
from weir_raft.groups.slots import GroupSlot, GroupSlots, SharedContext, SlotContacts
from weir_raft.leader import Leader
from weir_raft.membership import committed_index
from weir_raft.messages import Beat, BeatReply, HeartbeatReply, LinkMessage
from weir_raft.node import Node
from weir_raft.node_state import NodeState
from weir_raft.storage import NOBODY

#: When a link breaks, its followers wait this long, and as much again at most, times five.
_SOON_MS = 50
_SPREAD_MS = 250


class Multi:
    """All the groups of one host. Peers are opaque numbers.

    `peer_of(group, member)` says at which peer a member of a group is. It is asked again for all
    groups whenever a link comes up, and for one when its leader or configuration changes.
    Messages reach nobody before link_up().
    """

    def __init__(
        self,
        peer_of: Callable[[int, int], int],
        heartbeat_ms: int = 100,
        election_ms: int = 500,
    ) -> None:
        self._heartbeat_ms = heartbeat_ms
        self._election_ms = election_ms
        self._clock = Clock()
        self._promise = Promise()
        self._slots = GroupSlots(peer_of)
        self._beat_at = 0
        # Whether some peer may be owed an answer.
        self._owes = False
        #: Whether take_beats() has something to say, unless a group is `asking`.
        self.beats_wanted = True
        #: The groups where a read may wait for a round that is not sent yet.
        self.asking = self._slots.asking
        #: The fence that beats ask peers to promise; opaque. See ask().
        self.fence_asked = 0
        #: The highest fence that anybody asked this side for, itself included.
        self.fence_wanted = 0
        #: The highest fence this side promises to whoever asks, itself included. The host makes it
        #: durable first; a host that starts again gives it to its nodes as Config.fence.
        self.fence_bound = 0
        #: How often what fenced() says may have changed, but for elections and configurations.
        self.fence_changes = 0

    def context(self, group: int) -> NodeContext:
        """Return what to make the node of a group with that is to be added; others do not tick it.

        A node that takes no part is made without, and promises by itself.
        """
        contacts = SlotContacts(self._slots.contact, group)
        return SharedContext(
            self._clock, self._promise, contacts, group, self._slots.active, self.asking
        )

    def add(self, group: int, node: Node) -> None:
        """Let `node` take part, which was made with this group's context; else HostError."""
        if node.context.clock is not self._clock or node.context.group != group:
            raise HostError(f"make the node of group {group} with Multi.context({group})")
        slot = GroupSlot(group, node)
        self._slots.all[group] = slot
        self._slots.touch(slot)
        for peer, link in self._slots.links.items():
            if group in link.inward.led:
                slot.claims[peer] = link
        if slot.claims:
            self._slots.follow_claims(slot)

    def remove(self, group: int) -> None:
        """Forget a group."""
        slot = self._slots.all.pop(group, None)
        if slot is None:
            return
        self._slots.resign(slot)
        for link in slot.claims.values():
            link.inward.dropped[group] = 0
        self._slots.armed.pop(group, None)
        self._slots.reading.pop(group, None)
        self._slots.active.discard(group)
        self._slots.asking.discard(group)
        self._slots.unserved.discard(group)

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass for all groups."""
        self._slots.note_changes()
        now = self._clock.now = self._clock.now + elapsed_ms
        self.beats_wanted = self.beats_wanted or now >= self._beat_at
        for link in self._slots.links.values():
            self._watch(link, now)
        for slot in list(self._slots.armed.values()):
            if slot.node.core.state.deadline <= now:
                self._slots.touch(slot)
                slot.node.core.tick()

    def _watch(self, link: Link, now: int) -> None:
        """Let those keep time themselves who rely on a link that has fallen silent."""
        outward, inward = link.outward, link.inward
        since = now - self._election_ms
        if outward.led and not outward.silent and outward.contact.heard_at <= since:
            outward.silent = True
            for group in outward.led:
                self._slots.wake_leader(group)
        if inward.led and inward.contact.heard_at <= since:
            for slot in self._slots.followers(link):
                # One minimum has passed already: this is the drawn part of the timeout.
                self._slots.let_go(slot, slot.timeout() - self._election_ms)
            self._slots.forget_claims(link)

    def take_active(self) -> list[int]:
        """Groups with has_ready; each is named again only when more happens to it."""
        slots = self._slots
        if slots.active:
            slots.note_changes()
        if not slots.unserved:
            return []
        unserved, slots.unserved = slots.unserved, set()
        found = []
        for group in sorted(unserved):
            node = slots.all[group].node
            if node.touched and node.has_ready:
                found.append(group)
        return found

    def take_beats(self) -> list[tuple[int, LinkMessage]]:
        """What to send on links now: after groups were served, in every turn of the host's loop.

        A read's round goes out at once, everything else when a heartbeat is due.
        """
        if not (self.beats_wanted or self.asking):
            return []
        if self._slots.active:
            self._slots.note_changes()
        self.asking.clear()
        clock, reading = self._clock, self._slots.reading
        due = clock.now >= self._beat_at
        asking = reading and [group for group, leader in reading.items() if leader.reading]
        if not (due or asking or self._owes):
            return []
        beats: list[tuple[int, LinkMessage]] = []
        if due:
            self._beat_at = clock.now + self._heartbeat_ms
        if due or asking:
            clock.round += 1
        self._owes = self.beats_wanted = False
        for peer, link in self._slots.links.items():
            if not link.outward.contact.up:
                self._owes = self._owes or link.inward.owed > 0
                self.beats_wanted = self._owes
                continue
            if link.inward.owed:
                reply = link.inward.reply(self.fence_bound)
                self._promise.raise_to(reply.fence)
                beats.append((peer, reply))
            if due or (asking and not link.outward.led.keys().isdisjoint(asking)):
                beat = link.outward.beat(clock.round, self.fence_asked)
                if beat is not None:
                    beats.append((peer, beat))
        return beats

    def ask(self, fence: int) -> None:
        """Ask all who follow a leader here to promise `fence`; beats that say so go out at once."""
        if fence > self.fence_asked:
            self.fence_asked = fence
            self.fence_changes += 1
        self.fence_wanted = max(self.fence_wanted, fence)
        self._beat_at = 0
        self.beats_wanted = True

    @property
    def all_answered(self) -> bool:
        """Whether everybody who is there has answered what was asked for last, if with less."""
        asked = self.fence_asked
        return not any(link.outward.owes(asked) for link in self._slots.links.values())

    def raise_bound(self, bound: int) -> None:
        """Promise fences up to `bound`, which is durable: who asked for more is answered again."""
        if bound > self.fence_bound:
            self.fence_bound = bound
            self.fence_changes += 1
        self._owes = self.beats_wanted = True
        for link in self._slots.links.values():
            link.inward.answer_again(self.fence_bound)

    def fenced(self, group: int) -> int:
        """The highest fence that a majority of a group led here has promised; 0 if there is none.

        Whoever leads it next hears of it by its votes. Joint configurations need both majorities,
        and a leader without a committed entry of its own term has nothing that it could promise.
        """
        slot = self._slots.all[group]
        core = slot.node.core
        node_state, state = core.node_state, core.state
        if slot.established is not state:
            if not isinstance(state, Leader) or not _is_established(node_state, state):
                return 0
            slot.established = state  # for as long as it leads
        if slot.configuration is not node_state.history.newest or slot.state is not state:
            self._slots.note_changes()
        asked, bound = self.fence_asked, self.fence_bound
        own = bound if bound < asked else asked
        if own > self._promise.fence:
            self._promise.raise_to(own)
        if not slot.peers:
            return own
        fence = NEVER
        for half in slot.halves:
            promised = []
            for link in half:
                promised.append(link.outward.promises(group) if link else own)
            fence = min(fence, committed_index(promised))
        return fence

    def fences(self, groups: Iterable[int]) -> Iterator[int]:
        """Yield what `fenced` returns for each of many groups.

        A group without peers, as on a single node, costs no call: its fence is this node's own.
        """
        slots, own = self._slots.all, min(self.fence_bound, self.fence_asked)
        if own > self._promise.fence:
            self._promise.raise_to(own)
        for group in groups:
            slot = slots[group]
            core = slot.node.core
            if (
                slot.peers
                or slot.established is not core.state
                or slot.configuration is not core.node_state.history.newest
            ):
                yield self.fenced(group)
            else:
                yield own

    # Links

    def link_up(self, peer: int) -> None:
        """Messages can reach `peer` from now on; it may have forgotten everything."""
        self._slots.note_changes()
        link = self._slots.link(peer)
        link.outward.contact.up = True
        link.outward.contact.heard_at = self._clock.now
        link.outward.silent = False
        for slot in self._slots.all.values():
            if isinstance(slot.state, Leader):
                self._slots.lead(slot, slot.state)
        link.outward.start_again()
        self.fence_changes += 1
        for group in link.outward.led:
            self._slots.ask_again(link, group)
        self._beat_at = 0
        self.beats_wanted = True

    def link_down(self, peer: int) -> None:
        """Messages cannot reach `peer`, and what was under way may be lost.

        Who follows a leader there looks for another soon: others that still hear of it refuse.
        """
        self._slots.note_changes()
        link = self._slots.link(peer)
        link.outward.contact.up = False
        link.inward.answered = 0
        for slot in self._slots.followers(link):
            self._slots.let_go(slot, _SOON_MS + int(_SPREAD_MS * slot.draw()))
        self._slots.forget_claims(link)
        for group in link.outward.led:
            self._slots.ask_again(link, group)

    def step_link(self, peer: int, message: LinkMessage) -> None:
        """Take what came from `peer`."""
        slots = self._slots
        if slots.active:
            slots.note_changes()
        link = slots.links.get(peer) or slots.link(peer)
        if isinstance(message, Beat):
            self._beat_came(link, message)
        else:
            self._reply_came(link, message)

    def _beat_came(self, link: Link, beat: Beat) -> None:
        inward = link.inward
        inward.owed, inward.fence = beat.number, beat.fence
        self._owes = self.beats_wanted = True
        self.fence_wanted = max(self.fence_wanted, beat.fence)
        if beat.led is not None:
            self._claimed(link, {group: (term, leader) for group, term, leader in beat.led})
            inward.version = beat.version
        elif beat.version != inward.version:
            inward.version = 0  # asks for the whole
            return
        inward.contact.heard_at = self._clock.now

    def _claimed(self, link: Link, led: dict[int, tuple[int, int]]) -> None:
        """The peer leads these groups, and no others."""
        inward = link.inward
        before, inward.led = inward.led, led
        inward.contact.heard_at = self._clock.now
        for group in before.keys() - led.keys():
            inward.dropped.pop(group, None)
            slot = self._slots.all.get(group)
            if slot is not None:
                del slot.claims[link.peer]
                if slot.follows_through is link:
                    self._slots.let_go(slot, slot.timeout())
        for group, claim in led.items():
            slot = self._slots.all.get(group)
            if slot is None:
                inward.dropped[group] = 0
            elif before.get(group) != claim or slot.follows_through is not link:
                slot.claims[link.peer] = link
                self._slots.follow_claims(slot)

    def _reply_came(self, link: Link, reply: BeatReply) -> None:
        outward = link.outward
        if reply.number > self._clock.round:
            return
        if reply.version != outward.version:
            if reply.version == 0:
                outward.tell_again()
                return
            if reply.version > outward.version:
                return  # it was said to another life of this host
        outward.contact.heard_at = self._clock.now
        outward.silent = False
        if (outward.promised, outward.answered) != (reply.fence, reply.version):
            outward.promised, outward.answered = reply.fence, reply.version
            self.fence_changes += 1
        outward.number = reply.number
        if outward.dropped or reply.dropped:
            self._dropped(link, dict(reply.dropped))
        for group, leader in list(self._slots.reading.items()):
            if outward.confirms(group, reply):
                for id, member in leader.members.items():
                    if member.contact is outward.contact:
                        leader.confirm(id, reply.number)
                self._slots.touch(self._slots.all[group])
                if not leader.confirming:
                    del self._slots.reading[group]

    def _dropped(self, link: Link, dropped: dict[int, int]) -> None:
        """Some groups are not followed at the peer: it says nothing for their members there."""
        outward = link.outward
        before, outward.dropped = outward.dropped, dropped
        self.fence_changes += before.keys() != dropped.keys()
        for group in before.keys() - dropped.keys():
            self._slots.set_contacts(group, link.peer, outward.contact)
        for group, term in dropped.items():
            slot = self._slots.all.get(group)
            if slot is None or not isinstance(slot.state, Leader):
                continue
            if term > slot.node.term:
                self._slots.touch(slot)
                slot.node.core.step(HeartbeatReply(slot.state.leader, NOBODY, term, 0))
            elif group not in before:
                self._slots.set_contacts(group, link.peer, Contact())


def _is_established(node_state: NodeState, leader: Leader) -> bool:
    """Whether an entry of the own term is committed: what was inherited is so too, or never is."""
    return node_state.log.committed >= leader.first_index
