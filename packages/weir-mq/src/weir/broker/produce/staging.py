"""Takes the batches that sinks stage in a partition, while this node leads it (docs/adr/0075).

They are proposed at once, each in an entry of its own, and nobody sees them. Which runs are open
the replicated state says; here is what is under way.
"""

from __future__ import annotations

import msgspec

from weir.broker.produce.appender import Appender
from weir.broker.records.entries import Payload, of_control, of_staged
from weir.broker.records.partition import SinkForgotten
from weir.broker.records.staging import HEAD_BYTES_MAX, STAGED_COLUMNS, StagedRecord
from weir.broker.replica.group import Group
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.state.staging import StagingTable
from weir.errors import BadRequest, Overloaded, Refused, SequenceGap, TooLarge, Unavailable
from weir.model.batch import Columns
from weir.model.limits import BATCH_BYTES_MAX, RETRY_AFTER_MS, STAGED_RUNS_MAX
from weir.order.clock import Time, stamp_at
from weir.protocol.client.sinks import ForgetSink, SinkReleased, Stage, Staged

_BYTES_MAX = BATCH_BYTES_MAX - HEAD_BYTES_MAX


class _UnderWay(msgspec.Struct):
    """A batch that is proposed: its bytes, and the callers that wait for it."""

    record: StagedRecord
    charged: int
    callers: list[Caller] = msgspec.field(default_factory=list)


class StageRequests:
    """Takes staged batches: what is checked in which order, and when each writer is told."""

    __slots__ = (
        "_ahead",
        "_appender",
        "_budget",
        "_flying",
        "_forgetting",
        "_outbox",
        "_proposals",
        "_staging",
        "_time",
    )

    def __init__(
        self, group: Group, appender: Appender, staging: StagingTable, outbox: Outbox,
        budget: Budget, time: Time,
    ) -> None:  # fmt: skip
        """Begin to lead: what earlier leaders took is in the state."""
        self._appender = appender
        self._staging = staging
        self._outbox = outbox
        self._budget = budget
        self._time = time
        self._proposals: Proposals[Payload, _UnderWay] = Proposals(group)
        self._forgetting: Proposals[Payload, Caller] = Proposals(group)
        #: By run with batches under way, how many it will have once they are applied.
        self._ahead: dict[int, int] = {}
        #: By run and number, what is under way.
        self._flying: dict[tuple[int, int], _UnderWay] = {}

    def stage(self, caller: Caller, request: Stage) -> None:
        """Take a batch; the reply comes once it is committed. Raises `Refused`."""
        if len(request.batch) > _BYTES_MAX:
            raise TooLarge(
                f"a batch of {len(request.batch):,} bytes to be staged; {_BYTES_MAX:,} are "
                "allowed: stage fewer messages at once",
                _BYTES_MAX,
            )
        batch = self._appender.open(memoryview(request.batch))
        header = batch.header
        if header.columns & ~STAGED_COLUMNS:
            wrong = Columns(header.columns & ~STAGED_COLUMNS)
            raise BadRequest(f"a batch to be staged has no column {wrong.name}")
        if header.producer or header.epoch or header.sequence:
            raise BadRequest("a batch to be staged has no producer, and no sequence")
        if (expected := self._next(request)) is None:
            self._wait(caller, request)
            return
        if request.number > expected:
            raise SequenceGap(
                f"batch {request.number} of run {request.run} came, {expected} is missing: stage "
                "that first; if you had staged it, it has expired: stage the whole run anew",
                expected,
            )
        self._appender.check_open()
        self._budget.check(header.raw_size)
        self._appender.look_into(batch)
        self._budget.charge(len(request.batch))
        record = StagedRecord(
            request.run, request.query, request.batch_id, request.number,
            stamp_at(self._time.wall_ms()), header.count, header.hash, header.total_size,
        )  # fmt: skip
        under_way = _UnderWay(record, len(request.batch), [caller])
        try:
            self._proposals.propose(of_staged(record, request.batch), under_way)
        except Refused:
            self._budget.release(under_way.charged)
            raise
        self._ahead[request.run] = request.number + 1
        self._flying[request.run, request.number] = under_way

    def _next(self, request: Stage) -> int | None:
        """Return the number that a run's next batch has; None if it is past this one. Raises
        `Unavailable` for a run that is being published, and `Overloaded` for one too many.
        """
        staging, number = self._staging, request.run
        expected = self._ahead.get(number, staging.batches(number))
        if request.number < expected:
            return None
        if number in staging.held:
            raise Unavailable(f"run {number} is being published: nothing is added to it")
        run = staging.opened.get(number)
        if run is not None and (run.query, run.batch_id) != (request.query, request.batch_id):
            raise BadRequest(
                f"run {number} is of batch {run.batch_id} of query {run.query!r}: draw another one"
            )
        if not expected and len(staging.opened) + len(self._ahead) >= STAGED_RUNS_MAX:
            raise Overloaded(
                f"{STAGED_RUNS_MAX:,} runs are staged in this partition and not published: "
                "publish them, or wait until they expire",
                RETRY_AFTER_MS,
            )
        return expected

    def _wait(self, caller: Caller, request: Stage) -> None:
        """Answer a repeat once what it repeats is committed."""
        under_way = self._flying.get((request.run, request.number))
        if under_way is not None:
            under_way.callers.append(caller)
        else:
            self._outbox.reply(caller, Staged(self._staging.batches(request.run)))

    def applied(self, index: int, record: StagedRecord, is_taken: bool) -> None:
        """The entry at `index` is applied: its batch `is_taken`, or its run was published, or
        expired, before it.
        """
        under_way = self._proposals.applied(index)
        if under_way is None:
            return  # proposed by an earlier leader
        key = record.run, record.number
        del self._flying[key]
        batches = self._staging.batches(record.run)
        if self._ahead.get(record.run, 0) <= record.number + 1:
            self._ahead.pop(record.run, None)
        self._budget.release(under_way.charged)
        for caller in under_way.callers:
            if is_taken:
                self._outbox.reply(caller, Staged(batches))
            else:
                self._outbox.refuse(caller, SequenceGap("the run is gone: stage it anew", batches))

    def forget(self, caller: Caller, request: ForgetSink) -> None:
        """Forget a query, and answer once that is committed."""
        if request.query in self._staging.sinks:
            record = SinkForgotten(request.query)
            self._forgetting.propose(of_control(record), caller)
        else:
            self._outbox.reply(caller, SinkReleased(False))

    def forgotten(self, index: int) -> None:
        """The entry at `index` let a query be forgotten."""
        caller = self._forgetting.applied(index)
        if caller is not None:
            self._outbox.reply(caller, SinkReleased(True))

    def lose(self, error: Refused) -> None:
        """Another leads: refuse all who wait, give back what was charged for them."""
        for caller in self._forgetting.lose():
            self._outbox.refuse(caller, error)
        for under_way in self._proposals.lose():
            self._budget.release(under_way.charged)
            for caller in under_way.callers:
                self._outbox.refuse(caller, error)
        self._ahead.clear()
        self._flying.clear()
