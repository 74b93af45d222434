"""Which leader of the controller a node obeys: that of the highest term which it has seen.

A leader that was replaced may not know that yet, and what it has sent may come late.
"""

from __future__ import annotations


class Terms:
    """The highest term that one node has seen."""

    __slots__ = ("highest",)

    def __init__(self) -> None:
        #: 0 until a leader has answered.
        self.highest = 0

    def follow(self, term: int) -> bool:
        """Take the term of a leader that answers; return whether the node may follow it."""
        if term < self.highest:
            return False
        self.highest = term
        return True

    def obeys(self, term: int) -> bool:
        """Whether the node obeys a command of this term."""
        return term >= self.highest
