"""What a damaged group hears of its leader, and what may be concluded from it."""

from __future__ import annotations

import weir_raft as raft


class Overheard:
    """Listens to what is sent to a group that answers nothing.

    A leader knows what each of the others holds. Once it says that a majority without this one
    holds an entry of the leader's own term, and all that this one ever acknowledged, nothing that
    was committed depends on what lies here, and it may begin anew with nothing. What is committed
    alone shows less: it may have been committed by what this one had before it was damaged.
    """

    __slots__ = ("_term", "leader", "others_go_on")

    def __init__(self, term: int = 0) -> None:
        """Begin with nothing heard; leaders of terms before `term` are not listened to."""
        #: Who leads, of those who were heard; 0 for nobody.
        self.leader = 0
        #: Whether the group may be given up here.
        self.others_go_on = False
        self._term = term

    def take(self, message: raft.Message) -> None:
        """Take note of a message."""
        if isinstance(message, raft.Append | raft.InstallSnapshot) and message.term >= self._term:
            # What was said last counts: there may be a leader who knows better.
            self._term, self.others_go_on = message.term, message.spared
            self.leader = message.sender
