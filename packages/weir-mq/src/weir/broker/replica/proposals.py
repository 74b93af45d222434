"""What a leader proposed because somebody asked for it: the answer comes with the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

Proposed = TypeVar("Proposed")
Asker = TypeVar("Asker")


class Proposals(Generic[Proposed, Asker]):
    """Entries on their way to being applied, by Raft index, and who asked for each.

    They are one term's: whoever leads next applies entries that it did not propose, and nobody
    here waits for those.
    """

    __slots__ = ("_append", "_askers")

    def __init__(self, append: Callable[[Proposed], int]) -> None:
        """Begin with none; `append` proposes an entry and returns its index, as `Group.propose`."""
        self._append = append
        self._askers: dict[int, Asker] = {}

    def __len__(self) -> int:
        return len(self._askers)

    def __iter__(self) -> Iterator[Asker]:
        """Yield who waits, in the order of what they asked for."""
        return iter(self._askers.values())

    def propose(self, entry: Proposed, asker: Asker) -> None:
        """Propose what somebody asked for. Raises what `append` does; then nobody waits for it."""
        index = self._append(entry)
        self._askers[index] = asker

    def applied(self, index: int) -> Asker | None:
        """Return who asked for the entry at `index`, once; None if it was not proposed here."""
        return self._askers.pop(index, None)

    def lose(self) -> Sequence[Asker]:
        """Forget all, for another leads, who alone knows what became of them; return who must be
        told so.
        """
        askers, self._askers = self._askers, {}
        return list(askers.values())
