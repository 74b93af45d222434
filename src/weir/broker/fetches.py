"""Reads by offset from one partition, with long poll: a poll is a notify waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weir.broker.group import Group
from weir.broker.outbox import Caller, Outbox
from weir.broker.reads import Reads
from weir.broker.state import PartitionState
from weir.codec.fields import Buffer
from weir.errors import OffsetOutOfRange, Unavailable
from weir.model.limits import FETCH_BYTES_MAX, WAIT_MS_MAX
from weir.order.clock import Time
from weir.wire.messages import Fetch, Fetched


class _Parked(NamedTuple):
    caller: Caller
    request: Fetch
    deadline_ms: int


class Fetches:
    """Serves fetches, and parks those that are at the end until data or their deadline comes."""

    __slots__ = ("_group", "_outbox", "_parked", "_reads", "_state", "_time")

    def __init__(
        self, group: Group, state: PartitionState, reads: Reads, outbox: Outbox, time: Time
    ) -> None:
        """Serve one partition; nobody waits yet."""
        self._group = group
        self._state = state
        self._reads = reads
        self._outbox = outbox
        self._time = time
        self._parked: list[_Parked] = []

    def fetch(self, caller: Caller, request: Fetch) -> None:
        """Answer now if there is data or no time to wait. Raises `OffsetOutOfRange`."""
        behind = self._state.next_offset
        if not 0 <= request.offset <= behind:
            raise OffsetOutOfRange(
                f"offset {request.offset} is not there: this partition holds 0 to {behind}",
                min(max(request.offset, 0), behind),
            )
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        if request.offset < behind:
            self._serve(caller, request)
        elif wait_ms > 0:
            deadline = self._time.monotonic_ms() + wait_ms
            self._parked.append(_Parked(caller, request, deadline))
        else:
            self._answer(caller, request, request.offset, ())

    @property
    def waiting(self) -> bool:
        """Whether somebody waits."""
        return bool(self._parked)

    def wake(self) -> None:
        """New messages are committed: answer all who waited for them, in turn."""
        parked, self._parked = self._parked, []
        for waiter in parked:
            if waiter.request.offset < self._state.next_offset:
                self._serve(waiter.caller, waiter.request)
            else:
                self._parked.append(waiter)

    def tick(self) -> None:
        """Answer those whose time is up, with nothing."""
        now = self._time.monotonic_ms()
        for waiter in [w for w in self._parked if w.deadline_ms <= now]:
            self._parked.remove(waiter)
            self._answer(waiter.caller, waiter.request, waiter.request.offset, ())

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self._parked = [w for w in self._parked if w.caller.session != session]

    def _serve(self, caller: Caller, request: Fetch) -> None:
        reading = self._group.log.read(
            self._group.id,
            request.offset,
            min(max(request.max_bytes, 1), FETCH_BYTES_MAX),
            self._group.node.commit_index,
        )
        if reading is None:
            self._answer(caller, request, request.offset, ())
            return
        behind = reading.next_offset

        def answer(payloads: Sequence[Buffer], failure: str) -> None:
            if failure:
                self._outbox.refuse(caller, Unavailable(failure))
            else:
                self._answer(caller, request, behind, tuple(payloads))

        self._reads.start(reading, answer)

    def _answer(
        self, caller: Caller, request: Fetch, behind: int, batches: tuple[Buffer, ...]
    ) -> None:
        # While entries are being applied, those read may be ahead of those applied.
        committed = max(self._state.next_offset, behind)
        self._outbox.reply(
            caller, Fetched(request.address, request.offset, behind, committed, batches)
        )
