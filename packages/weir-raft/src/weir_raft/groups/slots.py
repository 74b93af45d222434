"""All the groups of a host: the slot of each, and which links stand for leaders and members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weir_raft.config import NEVER, Clock, Contact, Contacts, Promises
from weir_raft.election import Candidate, PreCandidate
from weir_raft.follower import Follower
from weir_raft.groups.link import Link
from weir_raft.leader import Leader
from weir_raft.membership import Configuration
from weir_raft.node import Node


class GroupSlot:
    """What Multi last saw of a group's node, and which links speak for it."""

    __slots__ = (
        "claims",
        "configuration",
        "established",
        "follows_through",
        "group",
        "halves",
        "node",
        "peers",
        "state",
    )  # fmt: skip

    def __init__(self, group: int, node: Node) -> None:
        self.group = group
        self.node = node
        #: The role as it was last seen.
        self.state: Follower | PreCandidate | Candidate | Leader = node.core.state
        #: The leader here of whose own term an entry is committed.
        self.established: Leader | None = None
        #: The configuration whose members' peers were told, while leading.
        self.configuration: Configuration | None = None
        self.peers: set[int] = set()
        #: The links to the voters of that configuration, None for this one's own vote: of each half
        #: that a majority is needed of.
        self.halves: list[list[Link | None]] = []
        #: By peer, the links whose other end says that it leads this group.
        self.claims: dict[int, Link] = {}
        #: The link that stands for the leader's presence.
        self.follows_through: Link | None = None

    def timeout(self) -> int:
        """A whole election timeout, drawn."""
        return self.node.core.node_state.timeout()

    def draw(self) -> float:
        """From [0, 1)."""
        return self.node.core.node_state.random()


class SlotContacts(Contacts):
    """Members of a group share the contacts of their peers' links."""

    __slots__ = ("_contact", "_group")

    shared = True

    def __init__(self, contact: Callable[[int, int], Contact], group: int) -> None:
        self._contact = contact
        self._group = group

    def of(self, member: int) -> Contact:
        """The contact of the link that leads to `member`."""
        return self._contact(self._group, member)


@dataclass(frozen=True, slots=True)
class SharedContext:
    """What the node of one group shares with those of all others."""

    clock: Clock
    promises: Promises
    contacts: Contacts
    group: int
    active: set[int]
    asking: set[int]


class GroupSlots:
    """Keeps links and timers in step with what happens to the groups."""

    def __init__(self, peer_of: Callable[[int, int], int]) -> None:
        self._peer_of = peer_of
        self.all: dict[int, GroupSlot] = {}
        self.links: dict[int, Link] = {}
        #: Groups to which something happened, maybe before they were added or since they were
        #: removed; and those of the others not yet given to the host.
        self.active: set[int] = set()
        self.unserved: set[int] = set()
        #: Groups where a read may wait for a round that is not sent yet.
        self.asking: set[int] = set()
        #: Groups that keep time themselves for now.
        self.armed: dict[int, GroupSlot] = {}
        #: Groups where reads wait for answers.
        self.reading: dict[int, Leader] = {}

    def touch(self, slot: GroupSlot) -> None:
        """Something happened to a group that its host did not do: it is to be served."""
        self.active.add(slot.group)
        slot.node.touched = True

    def link(self, peer: int) -> Link:
        """The link to `peer`, known or new."""
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = Link(peer)
        return link

    def contact(self, group: int, member: int) -> Contact:
        """The contact that stands for a member of a group."""
        return self.link(self._peer_of(group, member)).outward.contact

    def note_changes(self) -> None:
        """Let links and timers know what happened to groups since this was last done."""
        active = self.active
        while active:
            if len(active) == 1:  # as mostly: there is nothing to sort
                group = active.pop()
                slot = self.all.get(group)
                if slot is not None:
                    self.unserved.add(group)
                    self._note(slot)
                continue
            groups = [group for group in sorted(active) if group in self.all]
            active.clear()
            self.unserved.update(groups)
            for group in groups:
                self._note(self.all[group])

    def _note(self, slot: GroupSlot) -> None:
        core = slot.node.core
        state = core.state
        if state is not slot.state:
            slot.established = None  # it may hold a snapshot that it was sending
        if isinstance(state, Leader):
            if state is not slot.state or core.node_state.history.newest is not slot.configuration:
                self.resign(slot)
                self.lead(slot, state)
            if state.confirming:
                self.reading[slot.group] = state
        elif state is not slot.state:
            self.resign(slot)
            self.reading.pop(slot.group, None)
            slot.follows_through = None
            self.follow_claims(slot)
        slot.state = core.state
        if core.state.deadline < NEVER:
            self.armed[slot.group] = slot
        else:
            self.armed.pop(slot.group, None)

    def lead(self, slot: GroupSlot, leader: Leader) -> None:
        """Tell the peers of this group's members about its leader."""
        slot.configuration = slot.node.configuration
        slot.follows_through = None
        for link in slot.claims.values():
            link.inward.dropped[slot.group] = slot.node.term
        peers = set()
        for id in leader.members:
            peer = self._peer_of(slot.group, id)
            link = self.link(peer)
            peers.add(peer)
            leader.hear_through(id, link.outward.contact)
            link.outward.dropped.pop(slot.group, None)
            link.outward.lead(slot.group, slot.node.term, leader.leader)
        for peer in slot.peers - peers:
            self.link(peer).outward.lead_no_more(slot.group)
        slot.peers = peers
        configuration = slot.configuration
        slot.halves = [
            [
                None if id == leader.leader else self.link(self._peer_of(slot.group, id))
                for id in half
            ]
            for half in (configuration.voters, configuration.outgoing)
            if half
        ]

    def resign(self, slot: GroupSlot) -> None:
        """Tell the peers that this group is not led here."""
        for peer in slot.peers:
            self.link(peer).outward.lead_no_more(slot.group)
        slot.peers = set()

    def follow_claims(self, slot: GroupSlot) -> None:
        """Follow who leads this group by what its peer says, unless there is a higher term here."""
        core, group = slot.node.core, slot.group
        for link in slot.claims.values():
            term, leader = link.inward.led[group]
            if core.follow(term, leader):
                state = core.state
                assert isinstance(state, Follower)
                state.rely_on(link.inward.contact)
                slot.state, slot.follows_through = state, link
                slot.established = None
                link.inward.dropped.pop(group, None)
            else:
                link.inward.dropped[group] = core.node_state.term
        self.touch(slot)

    def followers(self, link: Link) -> list[GroupSlot]:
        """The groups that follow a leader at the other end."""
        slots = [self.all[group] for group in link.inward.led if group in self.all]
        return [slot for slot in slots if slot.follows_through is link]

    def let_go(self, slot: GroupSlot, wait_ms: int) -> None:
        """The link to a follower's leader says nothing for it any more."""
        slot.follows_through = None
        state = slot.node.core.state
        if isinstance(state, Follower):
            state.rely_no_more(wait_ms)
        self.touch(slot)

    def wake_leader(self, group: int) -> None:
        """Let a leader look after its members with the next tick."""
        slot = self.all[group]
        state = slot.node.core.state
        if isinstance(state, Leader):
            state.wake()
        self.touch(slot)

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
        slot = self.all.get(group)
        if slot is not None and isinstance(slot.state, Leader):
            for id in slot.state.members:
                if self._peer_of(group, id) == peer:
                    slot.state.hear_through(id, contact)
            self.wake_leader(group)

    def forget_claims(self, link: Link) -> None:
        """Believe nothing any more of what the other end said that it leads."""
        for group in link.inward.led:
            if group in self.all:
                self.all[group].claims.pop(link.peer, None)
        link.inward.led = {}
        link.inward.dropped = {}
        link.inward.version = 0
