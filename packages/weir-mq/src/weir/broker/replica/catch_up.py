"""What a leader gives to members that are far behind: old entries from the disk, or a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import weir_raft as raft
from weir.broker.records.entries import entry_of, unread
from weir.broker.records.snapshots import Packing, taken
from weir.broker.replica.catch_up_slots import Slots
from weir.broker.replica.raft_storage import LogStorage
from weir.broker.runtime.reads import Reads
from weir.codec.fields import Buffer
from weir.errors import DamagedRange, Refused
from weir.storage.entries.reads import Reading


class Supply:
    """Answers what one group's Raft node asks for on behalf of the others."""

    __slots__ = ("_advance", "_group", "_node", "_packing", "_past", "_reads", "_save", "_sent",
                 "_slots")  # fmt: skip

    def __init__(
        self,
        group: int,
        node: raft.Node,
        past: LogStorage,
        reads: Reads,
        slots: Slots,
        advance: Callable[[], None],
        save: Callable[[], None],
    ) -> None:
        """Read by `reads`, which charge the shard's budget; `advance` serves the node then. Once a
        checkpoint that `save` asks for is durable, Raft knows what is gone from the log.
        """
        self._group = group
        #: By member, through which index it was given entries, until it acknowledges them.
        self._sent: dict[int, int] = {}
        #: For whom a state is being packed.
        self._packing: set[int] = set()
        self._slots = slots
        self._node = node
        self._past = past
        self._reads = reads
        self._advance = advance
        self._save = save

    def load(self, load: raft.Load) -> None:
        """Read entries off the loop once this group has a slot."""
        self._slots.take(self._group, partial(self._read, load))

    def acknowledged(self, member: int, index: int) -> None:
        """A member has all through `index`."""
        if index >= self._sent.get(member, index + 1):
            del self._sent[member]
            if not self._sent:
                self._slots.done(self._group)

    def lose(self) -> None:
        """This node leads no more: whoever does will look after the others."""
        self._sent.clear()
        self._slots.forget(self._group)

    def _read(self, load: raft.Load) -> None:
        reading = self._past.reading(load)
        if reading is None:
            # Let go of while nobody else had the group: who comes needs a snapshot instead.
            self._save()
            self._slots.done(self._group)
            self._node.loaded(load.number, None)
        else:
            # Publishes hold room until they are committed, which may wait for this very member.
            self._reads.start(reading, partial(self._loaded, load, reading), at_once=True)

    def _loaded(
        self, load: raft.Load, reading: Reading, payloads: Sequence[Buffer], failure: Refused | None
    ) -> None:
        entries = None
        if failure is None:
            # A reading ends before what cannot be read: what comes before that goes out.
            rows = zip(reading.entries, payloads, strict=False)
            entries = [
                entry_of(at.index, at.term, unread(at.kind, (payload,), at.length))
                for at, payload in rows
            ]
            self._sent[load.member] = max(self._sent.get(load.member, 0), entries[-1].index)
        elif isinstance(failure, DamagedRange):
            # The state that came of it is whole: a snapshot of that may do instead.
            self._save()
        self._node.loaded(load.number, entries)
        self._advance()

    def snapshot(self, voter: int, state: raft.Snapshot) -> None:
        """Send the state; the member is sent all entries too that lie in the log.

        It is packed off the loop, once: Raft asks again for what takes long.
        """
        if voter not in self._packing:
            self._packing.add(voter)
            packing = Packing(self._past.log, taken(state.data))
            self._reads.start(packing, partial(self._packed, voter, state), at_once=True)

    def _packed(
        self, voter: int, state: raft.Snapshot, found: Sequence[Buffer], failure: Refused | None
    ) -> None:
        self._packing.discard(voter)
        first = self._node.first_index - 1
        index, term = max((first, self._node.term_at(first)), self._past.base)
        if failure is not None or index > state.index:
            return  # what comes behind it is gone by now: a newer one will do
        snapshot = replace(state, data=found[0], base_index=index, base_term=term)
        self._node.send_snapshot(voter, snapshot)
        self._advance()
