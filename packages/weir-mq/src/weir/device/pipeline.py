"""Sequenced publishes of one hub under way: go-back-N, as firmware would write it. Pure.

Every frame gets exactly one reply, in the order of the frames, but a frame whose bytes changed on
the way may be answered under a wrong number or lock. So after any trouble nothing more is sent
until all replies under way have come in; then sending begins again at the first publish that has no
confirm. Repeats do no harm: the broker answers them as it did the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weir.errors import (
    BY_CODE,
    BadChecksum,
    Fenced,
    NotLeader,
    Overloaded,
    PartitionEnded,
    Refused,
    RemoteProtocolError,
    SequenceGap,
    SequenceReused,
    Unavailable,
    refusal,
)
from weir.protocol.device import DeviceReply

_AGAIN = frozenset(kind.code for kind in (BadChecksum, Overloaded, NotLeader, Unavailable))


class Publish(NamedTuple):
    """A value of the lock `sn`, under its next sequence."""

    sn: int
    sequence: int
    value: bytes


class Pipeline:
    """Sends publishes in their order, with at most `window` of each lock under way.

    A lock whose window is full holds back those behind it: their order is worth more than speed.
    """

    __slots__ = ("_first", "_next", "_open", "_places", "_publishes", "_trouble", "_under_way",
                 "_window", "refused", "replies")  # fmt: skip

    def __init__(self, publishes: Sequence[Publish], window: int) -> None:
        """Begin with nothing sent; a lock's sequences rise one by one."""
        self._publishes = publishes
        self._window = window
        self._next = 0
        self._under_way = 0
        self._open: dict[int, int] = {}
        self._trouble: tuple[int, Refused] | None = None
        self._places = {(p.sn, p.sequence): at for at, p in enumerate(publishes)}
        self._first = 0  # the first place without a confirm
        #: The lock whose publishes were refused for good; None while there is none.
        self.refused: int | None = None
        #: By place in `publishes`: the confirm, or None.
        self.replies: list[DeviceReply | None] = [None] * len(publishes)

    @property
    def done(self) -> bool:
        """Whether every publish is confirmed and no reply is under way."""
        return self._under_way == 0 and self.unconfirmed == len(self.replies)

    @property
    def unconfirmed(self) -> int:
        """The first place without a confirm; the number of publishes if there is none."""
        while self._first < len(self.replies) and self.replies[self._first] is not None:
            self._first += 1
        return self._first

    def to_send(self) -> list[Publish]:
        """Return what goes out now, in order, and count it as under way."""
        found: list[Publish] = []
        while self._trouble is None and self._next < len(self._publishes):
            publish = self._publishes[self._next]
            if self.replies[self._next] is None:
                sent = self._open.get(publish.sn, 0)
                if sent >= self._window:
                    break
                self._open[publish.sn] = sent + 1
                found.append(publish)
            self._next += 1
        self._under_way += len(found)
        return found

    def answered(self, reply: DeviceReply) -> bool:
        """Take a reply; tell whether it confirms a publish that had no confirm.

        Raises the refusal that sending again would not cure.
        """
        self._under_way -= 1
        if reply.code:
            error = refusal(reply.code, self._why(reply), reply.offset)
            if reply.code not in _AGAIN and not isinstance(error, SequenceGap):
                self.refused = reply.sn
                raise error
            self._trouble = (reply.sn, error)
            return False
        place = self._places.get((reply.sn, reply.sequence))
        if place is None:
            raise RemoteProtocolError(
                f"a confirm of sequence {reply.sequence} of lock {reply.sn}, never sent"
            )
        self._open[reply.sn] = self._open.get(reply.sn, 0) - 1
        if self.replies[place] is not None:
            return False
        self.replies[place] = reply
        return True

    @staticmethod
    def _why(reply: DeviceReply) -> str:
        name = BY_CODE[reply.code].__name__ if reply.code in BY_CODE else "unknown"
        what = f"the broker refused lock {reply.sn} with code {reply.code} ({name})"
        if reply.code in (SequenceReused.code, Fenced.code):
            return f"{what}: a hub that has restarted must connect with a higher boot count"
        if reply.code == PartitionEnded.code:
            return (
                f"{what}: connect again with a higher boot count, to publish to another partition"
            )
        return what

    def rewind(self) -> Refused | None:
        """Once nothing is under way after trouble: begin again; return what the trouble was.

        Raises `SequenceGap` if the broker expects a sequence from before the first that is held.
        """
        if self._trouble is None or self._under_way:
            return None
        (sn, trouble), self._trouble = self._trouble, None
        self._restart()
        held = min((p.sequence for p in self._publishes if p.sn == sn), default=0)
        if isinstance(trouble, SequenceGap) and trouble.detail < held:
            self.refused = sn
            raise SequenceGap(
                f"the broker expects sequence {trouble.detail} of lock {sn}, which is not held "
                "any more: begin a new boot",
                trouble.detail,
            )
        return trouble

    def lost(self) -> None:
        """The connection ended: no reply under way will come."""
        self._under_way = 0
        self._trouble = None
        self._restart()

    def _restart(self) -> None:
        self._open.clear()
        self._next = self.unconfirmed
