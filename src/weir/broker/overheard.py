"""What a damaged group hears of its leader, and what may be concluded from it."""

from __future__ import annotations

from weir import raft

#: Above every index.
_NEVER = 1 << 63
#: A leader asks who does not answer once a heartbeat: so often, and far longer than an election
#: timeout has passed.
_GOES_ON = 50


class Overheard:
    """Listens to what is sent to a group that answers nothing.

    A leader that has committed an entry of its own term did so without this node. So a majority of
    others holds all that this one ever said it had, and it may begin anew with nothing. Where that
    entry was written before this node listened, a leader shows it by going on: one that is not
    followed by a majority soon writes to nobody.
    """

    __slots__ = ("_first", "_term", "_times", "others_go_on")

    def __init__(self) -> None:
        """Begin with nothing heard."""
        #: Whether the group may be given up here.
        self.others_go_on = False
        self._term = 0
        #: The first entry of the leader's own term that it wrote of, and how often it wrote.
        self._first = _NEVER
        self._times = 0

    def take(self, message: raft.Message) -> None:
        """Take note of a message."""
        if not isinstance(message, raft.Append):
            return
        if self._term != message.term:
            self._term, self._first, self._times = message.term, _NEVER, 0
        told = [(message.prev_index, message.prev_term)]
        told += [(entry.index, entry.term) for entry in message.entries]
        self._first = min([self._first, *(index for index, term in told if term == message.term)])
        self._times += 1
        if self._first <= message.commit or self._times > _GOES_ON:
            self.others_go_on = True
