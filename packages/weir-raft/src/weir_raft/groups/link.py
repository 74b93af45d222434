"""What two hosts of many groups tell each other at once, seen from one of them."""

from __future__ import annotations

from weir_raft.config import Contact
from weir_raft.messages import Beat, BeatReply


class Outward:
    """Our leaderships with members at the peer: what it is told, and what it answered."""

    __slots__ = (
        "_changed",
        "_since",
        "_told",
        "answered",
        "asked",
        "asked_by",
        "contact",
        "dropped",
        "led",
        "number",
        "promised",
        "silent",
        "version",
    )

    def __init__(self) -> None:
        #: When the peer last answered a beat, for all members there.
        self.contact = Contact()
        self.contact.up = False
        #: Term and leader's id of each group.
        self.led: dict[int, tuple[int, int]] = {}
        # From which version on each of them was told.
        self._since: dict[int, int] = {}
        self.version = 0
        self._changed = False
        # Whether the peer, if it is told of nothing, knows that.
        self._told = False
        #: Groups that the peer said it does not follow here, and its terms.
        self.dropped: dict[int, int] = {}
        #: Whether no beat was answered for an election timeout.
        self.silent = True
        #: The fence that the peer's newest answer promised, for what it was told by this version.
        self.promised = 0
        self.answered = 0
        #: The number of the newest beat that was answered.
        self.number = 0
        #: The highest fence that the peer was asked for, and the number of the first beat that did.
        self.asked = 0
        self.asked_by = 0

    def lead(self, group: int, term: int, leader: int) -> None:
        """`group` is led here, as far as the peer is concerned."""
        if self.led.get(group) != (term, leader):
            self.led[group] = (term, leader)
            self._since[group] = self.version + 1
            self._changed = True

    def lead_no_more(self, group: int) -> None:
        """`group` is not led here, or has no member at the peer."""
        if self.led.pop(group, None) is not None:
            del self._since[group]
            self._changed = True

    def start_again(self) -> None:
        """The peer may have forgotten everything, and its answers are void."""
        self._changed = True
        self._since = dict.fromkeys(self.led, self.version + 1)
        self.dropped = {}
        self.promised = self.answered = 0

    def tell_again(self) -> None:
        """The peer lacks what this version says."""
        self._changed = True

    def beat(self, number: int, fence: int) -> Beat | None:
        """The beat to send now, if there is anything to say."""
        led = None
        if self._changed:
            self._changed = False
            self.version = number
            led = tuple((group, term, leader) for group, (term, leader) in self.led.items())
        elif not self.led and self._told:
            return None
        self._told = not self.led
        if fence > self.asked:
            self.asked, self.asked_by = fence, number
        return Beat(number, self.version, led, fence)

    def confirms(self, group: int, reply: BeatReply) -> bool:
        """Whether an answer says that the peer follows in `group`."""
        since = self._since.get(group)
        return since is not None and since <= reply.version and group not in self.dropped

    def owes(self, fence: int) -> bool:
        """Whether the peer, as far as it is there and follows anybody here, has not answered yet
        what it was asked for `fence`.
        """
        if not self.led or self.silent or not self.contact.up:
            return False
        return self.asked < fence or self.number < self.asked_by

    def promises(self, group: int) -> int:
        """The fence that the peer promised as a follower in `group`; 0 if it said nothing of it."""
        since = self._since.get(group)
        follows = since is not None and since <= self.answered and group not in self.dropped
        return self.promised if follows else 0


class Inward:
    """The peer's leaderships with members here, and what we answer."""

    __slots__ = ("answered", "contact", "dropped", "fence", "led", "owed", "promised", "version")

    def __init__(self) -> None:
        #: When the peer last beat, for all its followers here.
        self.contact = Contact()
        #: Term and leader's id of each group it leads.
        self.led: dict[int, tuple[int, int]] = {}
        self.version = 0
        #: Groups of these that are not followed here, and their terms here.
        self.dropped: dict[int, int] = {}
        #: The number of the beat to answer, or 0, and the fence it asked for.
        self.owed = 0
        self.fence = 0
        #: The number of the beat that was answered last, and the fence that was promised then.
        self.answered = 0
        self.promised = 0

    def reply(self, fence_bound: int) -> BeatReply:
        """The answer that is owed to the newest beat."""
        number, self.owed = self.owed, 0
        fence = min(self.fence, fence_bound)
        self.answered, self.promised = number, fence
        return BeatReply(number, self.version, tuple(self.dropped.items()), fence)

    def answer_again(self, fence_bound: int) -> None:
        """Owe the newest beat another answer if more can be promised by now than it was told."""
        if min(self.fence, fence_bound) > self.promised:
            self.owed = self.owed or self.answered


class Link:
    """The way to one peer and back."""

    __slots__ = ("inward", "outward", "peer")

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.outward = Outward()
        self.inward = Inward()
