"""All the groups of a host, and which links stand for their leaders and members."""

from __future__ import annotations

from collections.abc import Callable

from weir_raft.context import NEVER, Contact
from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.link import Link
from weir_raft.seat import Seat


class Seating:
    """Keeps links and timers in step with what happens to the groups."""

    def __init__(self, peer_of: Callable[[int, int], int]) -> None:
        self._peer_of = peer_of
        self.all: dict[int, Seat] = {}
        self.links: dict[int, Link] = {}
        #: Groups to which something happened, maybe before they were added or since they were
        #: removed; and those of the others not yet given to the host.
        self.active: set[int] = set()
        self.unserved: set[int] = set()
        #: Groups where a read may wait for a round that is not sent yet.
        self.asking: set[int] = set()
        #: Groups that keep time themselves for now.
        self.armed: dict[int, Seat] = {}
        #: Groups where reads wait for answers.
        self.reading: dict[int, Leader] = {}

    def touch(self, seat: Seat) -> None:
        """Something happened to a group that its host did not do: it is to be served."""
        self.active.add(seat.group)
        seat.node.touched = True

    def link(self, peer: int) -> Link:
        """The link to `peer`, known or new."""
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = Link(peer)
        return link

    def contact(self, group: int, member: int) -> Contact:
        """The contact that stands for a member of a group."""
        return self.link(self._peer_of(group, member)).outward.contact

    def settle(self) -> None:
        """Let links and timers know what happened to groups since this was last done."""
        active = self.active
        while active:
            if len(active) == 1:  # as mostly: there is nothing to sort
                group = active.pop()
                seat = self.all.get(group)
                if seat is not None:
                    self.unserved.add(group)
                    self._note(seat)
                continue
            groups = [group for group in sorted(active) if group in self.all]
            active.clear()
            self.unserved.update(groups)
            for group in groups:
                self._note(self.all[group])

    def _note(self, seat: Seat) -> None:
        core = seat.node.core
        state = core.state
        if state is not seat.state:
            seat.settled = None  # it may hold a snapshot that it was sending
        if isinstance(state, Leader):
            if state is not seat.state or core.ground.history.newest is not seat.configuration:
                self.resign(seat)
                self.lead(seat, state)
            if state.confirming:
                self.reading[seat.group] = state
        elif state is not seat.state:
            self.resign(seat)
            self.reading.pop(seat.group, None)
            seat.follows_through = None
            self.heed(seat)
        seat.state = core.state
        if core.state.deadline < NEVER:
            self.armed[seat.group] = seat
        else:
            self.armed.pop(seat.group, None)

    def lead(self, seat: Seat, leader: Leader) -> None:
        """Tell the peers of this group's members about its leader."""
        seat.configuration = seat.node.configuration
        seat.follows_through = None
        for link in seat.claims.values():
            link.inward.dropped[seat.group] = seat.node.term
        peers = set()
        for id in leader.members:
            peer = self._peer_of(seat.group, id)
            link = self.link(peer)
            peers.add(peer)
            leader.hear_through(id, link.outward.contact)
            link.outward.dropped.pop(seat.group, None)
            link.outward.lead(seat.group, seat.node.term, leader.leader)
        for peer in seat.peers - peers:
            self.link(peer).outward.lead_no_more(seat.group)
        seat.peers = peers
        configuration = seat.configuration
        seat.halves = [
            [
                None if id == leader.leader else self.link(self._peer_of(seat.group, id))
                for id in half
            ]
            for half in (configuration.voters, configuration.outgoing)
            if half
        ]

    def resign(self, seat: Seat) -> None:
        """Tell the peers that this group is not led here."""
        for peer in seat.peers:
            self.link(peer).outward.lead_no_more(seat.group)
        seat.peers = set()

    def heed(self, seat: Seat) -> None:
        """Follow who leads this group by what its peer says, unless there is a higher term here."""
        core, group = seat.node.core, seat.group
        for link in seat.claims.values():
            term, leader = link.inward.led[group]
            if core.heed(term, leader):
                state = core.state
                assert isinstance(state, Follower)
                state.rely_on(link.inward.contact)
                seat.state, seat.follows_through = state, link
                seat.settled = None
                link.inward.dropped.pop(group, None)
            else:
                link.inward.dropped[group] = core.ground.term
        self.touch(seat)

    def followers(self, link: Link) -> list[Seat]:
        """The groups that follow a leader at the other end."""
        seats = [self.all[group] for group in link.inward.led if group in self.all]
        return [seat for seat in seats if seat.follows_through is link]

    def let_go(self, seat: Seat, wait_ms: int) -> None:
        """The link to a follower's leader says nothing for it any more."""
        seat.follows_through = None
        state = seat.node.core.state
        if isinstance(state, Follower):
            state.rely_no_more(wait_ms)
        self.touch(seat)

    def wake_leader(self, group: int) -> None:
        """Let a leader look after its members with the next tick."""
        seat = self.all[group]
        state = seat.node.core.state
        if isinstance(state, Leader):
            state.wake()
        self.touch(seat)

    def ask_again(self, link: Link, group: int) -> None:
        """Let a leader find out where its members at the other end stand."""
        leader = self.all[group].node.core.state
        if isinstance(leader, Leader):
            for id, member in leader.members.items():
                if member.contact is link.outward.contact:
                    leader.reached(id)
            self.wake_leader(group)

    def set_contacts(self, group: int, peer: int, contact: Contact) -> None:
        """Let `contact` stand for the members of a group at `peer`."""
        seat = self.all.get(group)
        if seat is not None and isinstance(seat.state, Leader):
            for id in seat.state.members:
                if self._peer_of(group, id) == peer:
                    seat.state.hear_through(id, contact)
            self.wake_leader(group)

    def forget_claims(self, link: Link) -> None:
        """Believe nothing any more of what the other end said that it leads."""
        for group in link.inward.led:
            if group in self.all:
                self.all[group].claims.pop(link.peer, None)
        link.inward.led = {}
        link.inward.dropped = {}
        link.inward.version = 0
