"""Many groups over few links: who is due, and one heartbeat a link instead of one a group.

A leader's peers are told of its leaderships as a set, in full whenever that changes; from then on
one small beat and its answer stand for all of them. While beats come, a follower keeps no time of
its own; while they are answered, a leader that has nothing to send keeps none either. So groups
where nothing happens cost nothing. The rules are those of a node alone: contact with a leader
(§3.4), with a majority (§6.2), and the round before a read (§6.4) count beats and answers instead.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.raft.follower import Follower
from weir.raft.ground import NEVER, Clock, Contact
from weir.raft.leader import Leader
from weir.raft.link import Link
from weir.raft.messages import Beat, BeatReply, HeartbeatReply, LinkMessage
from weir.raft.node import Node
from weir.raft.seat import Seat, SeatContacts
from weir.raft.storage import NOBODY

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
        self._peer_of = peer_of
        self._heartbeat_ms = heartbeat_ms
        self._election_ms = election_ms
        self._clock = Clock()
        self._seats: dict[int, Seat] = {}
        self._links: dict[int, Link] = {}
        #: Groups to which something happened, and those of them not yet given to the host.
        self._active: set[int] = set()
        self._unserved: set[int] = set()
        #: Groups that keep time themselves for now.
        self._armed: dict[int, Seat] = {}
        #: Groups where reads wait for answers.
        self._reading: dict[int, Leader] = {}
        self._beat_at = 0
        #: The fence that beats ask peers to promise; opaque.
        self.fence_asked = 0
        #: The highest fence this side promises to whoever asks.
        self.fence_bound = 0

    def add(self, group: int, node: Node) -> None:
        """Let `node` take part; from now on its host does not tick it."""
        seat = Seat(group, node)
        self._seats[group] = seat
        ground = node.core.ground
        passed = self._clock.now - ground.clock.now
        ground.clock = self._clock
        ground.contacts = SeatContacts(self._contact, group)
        node.core.state.deadline = min(node.core.state.deadline + passed, NEVER)
        node.activate_in(self._active, group)
        for peer, link in self._links.items():
            if group in link.inward.led:
                seat.claims[peer] = link
        if seat.claims:
            self._heed(seat)

    def remove(self, group: int) -> None:
        """Forget a group."""
        seat = self._seats.pop(group, None)
        if seat is None:
            return
        self._resign(seat)
        for link in seat.claims.values():
            link.inward.dropped[group] = 0
        self._armed.pop(group, None)
        self._reading.pop(group, None)
        self._active.discard(group)
        self._unserved.discard(group)
        seat.node.activate_in(set(), group)

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass for all groups."""
        self._settle()
        now = self._clock.now = self._clock.now + elapsed_ms
        for link in self._links.values():
            self._watch(link, now)
        for group, seat in list(self._armed.items()):
            if seat.node.core.state.deadline <= now:
                self._active.add(group)
                seat.node.core.tick()

    def _watch(self, link: Link, now: int) -> None:
        """Let those keep time themselves who rely on a link that has fallen silent."""
        outward, inward = link.outward, link.inward
        since = now - self._election_ms
        if outward.led and not outward.silent and outward.contact.heard_at <= since:
            outward.silent = True
            for group in outward.led:
                self._wake_leader(group)
        if inward.led and inward.contact.heard_at <= since:
            for seat in self._followers(link):
                # One minimum has passed already: this is the drawn part of the timeout.
                self._let_go(seat, seat.timeout() - self._election_ms)
            self._forget_claims(link)

    def take_active(self) -> list[int]:
        """Groups with has_ready; each is named again only when more happens to it."""
        self._settle()
        unserved, self._unserved = self._unserved, set()
        return [group for group in sorted(unserved) if self._seats[group].node.has_ready]

    def take_beats(self) -> list[tuple[int, LinkMessage]]:
        """What to send on links now: after groups were served, in every turn of the host's loop.

        A read's round goes out at once, everything else when a heartbeat is due.
        """
        self._settle()
        clock = self._clock
        due = clock.now >= self._beat_at
        if due:
            self._beat_at = clock.now + self._heartbeat_ms
        asking = [group for group, leader in self._reading.items() if leader.reading]
        beats: list[tuple[int, LinkMessage]] = []
        if due or asking:
            clock.round += 1
        for peer, link in self._links.items():
            if not link.outward.contact.up:
                continue
            reply = link.inward.reply(self.fence_bound)
            if reply is not None:
                beats.append((peer, reply))
            if due or any(group in link.outward.led for group in asking):
                beat = link.outward.beat(clock.round, self.fence_asked)
                if beat is not None:
                    beats.append((peer, beat))
        return beats

    def promised(self, peer: int) -> int:
        """The fence that `peer` promised in its newest answer; 0 if none since it came up."""
        link = self._links.get(peer)
        return link.outward.promised if link else 0

    # Links

    def link_up(self, peer: int) -> None:
        """Messages can reach `peer` from now on; it may have forgotten everything."""
        self._settle()
        link = self._link(peer)
        link.outward.contact.up = True
        link.outward.contact.heard_at = self._clock.now
        link.outward.silent = False
        for seat in self._seats.values():
            if isinstance(seat.state, Leader):
                self._lead(seat, seat.state)
        link.outward.start_again()
        for group in link.outward.led:
            self._ask_again(link, group)
        self._beat_at = 0

    def link_down(self, peer: int) -> None:
        """Messages cannot reach `peer`, and what was under way may be lost.

        Who follows a leader there looks for another soon: others that still hear of it refuse.
        """
        self._settle()
        link = self._link(peer)
        link.outward.contact.up = False
        for seat in self._followers(link):
            self._let_go(seat, _SOON_MS + int(_SPREAD_MS * seat.draw()))
        self._forget_claims(link)
        for group in link.outward.led:
            self._wake_leader(group)

    def step_link(self, peer: int, message: LinkMessage) -> None:
        """Take what came from `peer`."""
        self._settle()
        link = self._link(peer)
        if isinstance(message, Beat):
            self._beat_came(link, message)
        else:
            self._reply_came(link, message)

    def _beat_came(self, link: Link, beat: Beat) -> None:
        inward = link.inward
        inward.owed, inward.fence = beat.number, beat.fence
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
            seat = self._seats.get(group)
            if seat is not None:
                del seat.claims[link.peer]
                if seat.follows_through is link:
                    self._let_go(seat, seat.timeout())
        for group, claim in led.items():
            seat = self._seats.get(group)
            if seat is None:
                inward.dropped[group] = 0
            elif before.get(group) != claim or seat.follows_through is not link:
                seat.claims[link.peer] = link
                self._heed(seat)

    def _reply_came(self, link: Link, reply: BeatReply) -> None:
        outward = link.outward
        if reply.number > self._clock.round:
            return
        if reply.version != outward.version:
            if reply.version == 0:
                outward.tell_again()
                return
            if reply.version > outward.version:
                return  # of the link's life before this one
        outward.contact.heard_at = self._clock.now
        outward.silent = False
        outward.promised = reply.fence
        self._dropped(link, dict(reply.dropped))
        for group, leader in list(self._reading.items()):
            if outward.confirms(group, reply):
                for id, member in leader.members.items():
                    if member.contact is outward.contact:
                        leader.confirm(id, reply.number)
                self._active.add(group)
                if not leader.confirming:
                    del self._reading[group]

    def _dropped(self, link: Link, dropped: dict[int, int]) -> None:
        """Some groups are not followed at the peer: it says nothing for their members there."""
        outward = link.outward
        before, outward.dropped = outward.dropped, dropped
        if not before and not dropped:
            return
        for group in before.keys() - dropped.keys():
            self._set_contacts(group, link.peer, outward.contact)
        for group, term in dropped.items():
            seat = self._seats.get(group)
            if seat is None or not isinstance(seat.state, Leader):
                continue
            if term > seat.node.term:
                self._active.add(group)
                seat.node.core.step(HeartbeatReply(seat.state.leader, NOBODY, term, 0))
            elif group not in before:
                self._set_contacts(group, link.peer, Contact())

    def _set_contacts(self, group: int, peer: int, contact: Contact) -> None:
        seat = self._seats.get(group)
        if seat is not None and isinstance(seat.state, Leader):
            for id, member in seat.state.members.items():
                if self._peer_of(group, id) == peer:
                    member.contact = contact
            self._wake_leader(group)

    def _link(self, peer: int) -> Link:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = Link(peer)
        return link

    def _contact(self, group: int, member: int) -> Contact:
        return self._link(self._peer_of(group, member)).outward.contact

    def _ask_again(self, link: Link, group: int) -> None:
        leader = self._seats[group].node.core.state
        if isinstance(leader, Leader):
            for id, member in leader.members.items():
                if member.contact is link.outward.contact:
                    leader.reached(id)
            self._wake_leader(group)

    def _wake_leader(self, group: int) -> None:
        state = self._seats[group].node.core.state
        if isinstance(state, Leader):
            state.deadline = self._clock.now
        self._active.add(group)

    # Groups

    def _settle(self) -> None:
        """Let links and timers know what happened to groups since this was last done."""
        while self._active:
            active = sorted(self._active)
            self._active.clear()
            self._unserved.update(active)
            for group in active:
                self._note(self._seats[group])

    def _note(self, seat: Seat) -> None:
        core = seat.node.core
        state = core.state
        if isinstance(state, Leader):
            if state is not seat.state or core.ground.configuration is not seat.configuration:
                self._resign(seat)
                self._lead(seat, state)
            if state.confirming:
                self._reading[seat.group] = state
        elif state is not seat.state:
            self._resign(seat)
            self._reading.pop(seat.group, None)
            seat.follows_through = None
            self._heed(seat)
        seat.state = core.state
        if core.state.deadline < NEVER:
            self._armed[seat.group] = seat
        else:
            self._armed.pop(seat.group, None)

    def _lead(self, seat: Seat, leader: Leader) -> None:
        """Tell the peers of this group's members about its leader."""
        seat.configuration = seat.node.configuration
        seat.follows_through = None
        for link in seat.claims.values():
            link.inward.dropped[seat.group] = seat.node.term
        peers = set()
        for id, member in leader.members.items():
            peer = self._peer_of(seat.group, id)
            link = self._link(peer)
            peers.add(peer)
            member.contact = link.outward.contact
            link.outward.dropped.pop(seat.group, None)
            link.outward.lead(seat.group, seat.node.term, leader.leader)
        for peer in seat.peers - peers:
            self._link(peer).outward.lead_no_more(seat.group)
        seat.peers = peers

    def _resign(self, seat: Seat) -> None:
        for peer in seat.peers:
            self._link(peer).outward.lead_no_more(seat.group)
        seat.peers = set()

    def _heed(self, seat: Seat) -> None:
        """Follow who leads this group by what its peer says, unless there is a higher term here."""
        core, group = seat.node.core, seat.group
        for link in seat.claims.values():
            term, leader = link.inward.led[group]
            if core.heed(term, leader):
                state = core.state
                assert isinstance(state, Follower)
                state.rely_on(link.inward.contact)
                seat.state, seat.follows_through = state, link
                link.inward.dropped.pop(group, None)
            else:
                link.inward.dropped[group] = core.ground.term
        self._active.add(group)

    def _followers(self, link: Link) -> list[Seat]:
        seats = [self._seats[group] for group in link.inward.led if group in self._seats]
        return [seat for seat in seats if seat.follows_through is link]

    def _let_go(self, seat: Seat, wait_ms: int) -> None:
        """The link to a follower's leader says nothing for it any more."""
        seat.follows_through = None
        state = seat.node.core.state
        if isinstance(state, Follower):
            state.rely_no_more(wait_ms)
        self._active.add(seat.group)

    def _forget_claims(self, link: Link) -> None:
        for group in link.inward.led:
            if group in self._seats:
                self._seats[group].claims.pop(link.peer, None)
        link.inward.led = {}
        link.inward.dropped = {}
        link.inward.version = 0
