"""Sequenced publishes of one device under way: go-back-N, as firmware would write it. Pure.

Every frame gets exactly one reply, but a frame whose bytes changed on the way may be answered under
a wrong number. So after any trouble nothing more is sent until all replies under way have come in;
then sending begins again at the first publish that has no confirm. Repeats do no harm: the broker
answers them as it did the first time.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.errors import (
    BadChecksum,
    NotLeader,
    Overloaded,
    Refused,
    RemoteProtocolError,
    SequenceGap,
    Unavailable,
    refusal,
)
from weir.wire.device import DeviceReply

_AGAIN = frozenset(kind.code for kind in (BadChecksum, Overloaded, NotLeader, Unavailable))


class Pipeline:
    """Sends `values` under sequences `first`, `first` + 1, ... with at most `window` under way."""

    __slots__ = ("_first", "_next", "_trouble", "_under_way", "_values", "_window", "replies")

    def __init__(self, values: Sequence[bytes], first: int, window: int) -> None:
        """Begin with nothing sent."""
        self._values = values
        self._first = first
        self._window = window
        self._next = 0
        self._under_way = 0
        self._trouble: Refused | None = None
        #: By place in `values`: the confirm, or None.
        self.replies: list[DeviceReply | None] = [None] * len(values)

    @property
    def done(self) -> bool:
        """Whether every value is confirmed and no reply is under way."""
        return self._under_way == 0 and None not in self.replies

    def to_send(self) -> list[tuple[int, bytes]]:
        """Return what goes out now, (sequence, value) each, and count it as under way."""
        if self._trouble is not None:
            return []
        last = min(len(self._values), self._next + self._window - self._under_way)
        found = [(self._first + i, self._values[i]) for i in range(self._next, last)]
        self._next += len(found)
        self._under_way += len(found)
        return found

    @property
    def unconfirmed(self) -> int:
        """The place of the first value without a confirm; the number of values if there is none."""
        return self.replies.index(None) if None in self.replies else len(self.replies)

    def answered(self, reply: DeviceReply) -> bool:
        """Take a reply; tell whether it confirms a value that had no confirm.

        Raises the refusal that sending again would not cure.
        """
        self._under_way -= 1
        if reply.code:
            error = refusal(reply.code, f"the broker refused with code {reply.code}", reply.offset)
            if reply.code not in _AGAIN and not isinstance(error, SequenceGap):
                raise error
            self._trouble = error
            return False
        place = reply.sequence - self._first
        if not 0 <= place < len(self.replies):
            raise RemoteProtocolError(f"a confirm of sequence {reply.sequence}, never sent")
        if self.replies[place] is not None:
            return False
        self.replies[place] = reply
        return True

    def rewind(self) -> Refused | None:
        """Once nothing is under way after trouble: begin again; return what the trouble was.

        Raises `SequenceGap` if the broker expects a sequence from before the first that is held.
        """
        if self._trouble is None or self._under_way:
            return None
        trouble, self._trouble = self._trouble, None
        self._next = self.unconfirmed
        if isinstance(trouble, SequenceGap) and trouble.detail < self._first:
            raise SequenceGap(
                f"the broker expects sequence {trouble.detail}, which is not held any more: "
                "begin a new boot",
                trouble.detail,
            )
        return trouble

    def lost(self) -> None:
        """The connection ended: no reply under way will come."""
        self._under_way = 0
        self._trouble = None
        self._next = self.unconfirmed
