"""The properties of Figure 3.2 of the Raft dissertation, checked as things happen."""

from __future__ import annotations

from collections.abc import Iterable

import weir_raft as raft


class Checks:
    """What must hold between all nodes of a group for ever; AssertionError where it does not."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._leader_of: dict[int, int] = {}
        self._entries: dict[tuple[int, int], tuple[object, int]] = {}
        #: Of every entry that anybody applied, the term, and the state after it as a CRC.
        self.committed: dict[int, tuple[int, int]] = {}
        self.committed_through = 0
        #: What was committed when each read was asked for.
        self.asked: dict[int, int] = {}

    def apart(self, name: str, through: int) -> Checks:
        """Return checks of members that go on without the others from here on, and that know what
        is committed through an index.
        """
        found = Checks(name)
        found.committed = {i: kept for i, kept in self.committed.items() if i <= through}
        found._entries = dict(self._entries)
        return found

    @property
    def elections(self) -> int:
        """How many terms had a leader."""
        return len(self._leader_of)

    def elected(self, id: int, node: raft.Node, term: int) -> None:
        """Election safety, and leader completeness."""
        other = self._leader_of.setdefault(term, id)
        assert other == id, f"{self._name}: {other} and {id} lead term {term}"
        for index, (committed, _) in self.committed.items():
            if index >= node.log.first_index and committed < term:
                assert index <= node.log.last_index, f"{self._name}: leader {id} lacks {index}"
                assert node.log.term(index) == committed, f"{self._name}: {id} differs at {index}"

    def appended(self, node: raft.Node, entry: raft.Entry) -> None:
        """Log matching: an index and a term name one entry, and one history below it."""
        before = node.log.term(entry.index - 1)
        kept = self._entries.setdefault((entry.index, entry.term), (entry.data, before))
        assert kept == (entry.data, before) or not before, (
            f"{self._name}: two entries {entry.index} of term {entry.term}"
        )

    def applied(self, index: int, term: int, crc: int) -> None:
        """State machine safety: one entry at an index, everywhere and for ever."""
        kept = self.committed.setdefault(index, (term, crc))
        assert kept == (term, crc), f"{self._name}: two entries {index} are committed"
        self.committed_through = max(self.committed_through, index)

    def served(self, reads: Iterable[raft.ReadState]) -> None:
        """A read sees what anybody had applied when it was asked for."""
        for read in reads:
            needed = self.asked[read.context]
            assert read.index >= needed, f"{self._name}: a read at {read.index} of {needed}"
