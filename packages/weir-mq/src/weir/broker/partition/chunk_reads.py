"""Reads of chunks by the Raft index of their entries, for whoever holds references to them."""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.reads import Reads
from weir.codec.fields import Buffer
from weir.errors import BadRequest, Refused, ValueLost
from weir.model.limits import CHUNKS_PER_FETCH_MAX, FETCH_BYTES_MAX
from weir.protocol.client.messages import FetchChunks, FetchedChunks


class ChunkReads:
    """Serves one partition's chunks; nothing waits here, for what is referred to is committed."""

    __slots__ = ("_group", "_outbox", "_reads")

    def __init__(self, group: Group, reads: Reads, outbox: Outbox) -> None:
        """Serve what the group's log holds."""
        self._group = group
        self._reads = reads
        self._outbox = outbox

    def fetch(self, caller: Caller, request: FetchChunks) -> None:
        """Answer with at least one entry. Raises `BadRequest`, and `ValueLost` where none lies."""
        if request.index < 1 or request.count < 1:
            raise BadRequest("chunks lie in entries from 1 on: ask for one or more")
        reading = self._group.log.read_entries(
            self._group.id,
            request.index,
            min(request.count, CHUNKS_PER_FETCH_MAX),
            min(max(request.max_bytes, 1), FETCH_BYTES_MAX),
            self._group.node.commit_index,
        )
        if reading is None:
            raise ValueLost(
                f"no chunk lies in entry {request.index}: it is past retention, or the references "
                "are not of this partition"
            )

        def answer(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            if failure is not None:
                self._outbox.refuse(caller, failure)
            else:
                reply = FetchedChunks(request.address, request.index, tuple(payloads))
                self._outbox.reply(caller, reply)

        self._reads.start(reading, answer)
