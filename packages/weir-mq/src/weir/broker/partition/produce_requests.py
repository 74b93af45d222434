"""A client's batch on its way in: what is checked in which order, and when its sender is told."""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.partition.context import Surroundings
from weir.broker.produce.appender import Intake
from weir.broker.produce.batcher import Crowd, FanIn, refused
from weir.broker.records.entries import BatchRecord
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import ROW_BYTES
from weir.errors import Refused, Unavailable
from weir.model.batch import Batch
from weir.model.header import Columns, Header
from weir.protocol.client.messages import Confirm, Level, Produce

_CHUNK = int(Columns.CHUNK)
#: What is to be looked at beside the messages themselves, where a batch has it.
_SPECIAL = int(Columns.CHUNK | Columns.REFERENCES | Columns.DUE)
_REPLICATED, _EARLY, _VISIBLE = Level.REPLICATED, Level.RECEIVED, Level.VISIBLE


def publish(
    shared: Surroundings,
    intake: Intake,
    caller: Caller,
    request: Produce,
    own: Callable[[Header], None],
    check_dues: Callable[[Batch], None],
) -> bool:
    """Take a batch; the reply comes once it is as safe as its level says. `own` raises unless its
    sender may, `check_dues` where messages would come too late. Return whether there is something
    new to propose. Raises `Refused`.
    """
    batch = intake.open(request.batch)
    own(batch.header)
    verdict = intake.judge(batch.header)
    # Who sends a chunk needs to know its place, to refer to it.
    level = _REPLICATED if batch.header.columns & _CHUNK else request.level
    early = level == _EARLY

    def tell(reply: Confirm) -> None:
        if level == _VISIBLE:
            _when_visible(shared, intake.group_id, caller, reply)
        else:
            shared.outbox.reply(caller, _received(reply) if early else reply)

    if isinstance(verdict, Confirm):
        tell(verdict)
        return False
    repeats = verdict is not None
    if verdict is None:
        if request.seen > intake.clock.highest:  # else who is honest had it from here
            intake.check_seen(request.seen)
        shared.budget.check(batch.header.raw_size)
        intake.look_into(batch)
        if batch.header.columns & _SPECIAL:
            intake.check_large(batch)
            check_dues(batch)
        shared.budget.charge(len(request.batch))
        verdict = intake.accept(batch, request.seen)
        verdict.charged = len(request.batch)

    def confirm(outcome: BatchRecord | Refused) -> None:
        if isinstance(outcome, Refused):
            shared.outbox.refuse(caller, outcome)
        else:
            tell(intake.confirm(outcome, repeats))

    # One that was cut already may be durable, or not: whoever repeats it waits for the commit.
    (verdict.early if early and not repeats else verdict.clients).append(confirm)
    return not repeats


def publish_devices(shared: Surroundings, group: int, fan_in: FanIn, crowd: Crowd) -> None:
    """Take device publishes to a group, of each connection, or refuse all of it, in line either
    way: one without a sequence knows its reply by its place alone.
    """
    charges = [
        sum(map(len, publishes.values)) + ROW_BYTES * len(publishes.values)
        for _, publishes in crowd
    ]
    charged = sum(charges)
    if len(crowd) > 1 and not shared.budget.fits(charged):  # there may be room for some
        for one in crowd:
            publish_devices(shared, group, fan_in, (one,))
        return
    try:
        shared.admit(group)
        shared.budget.charge(charged)
    except Refused as error:
        for seat, publishes in crowd:
            fan_in.add(seat, refused(publishes, error), 0, error.detail)
    else:
        for (seat, publishes), charged in zip(crowd, charges, strict=True):
            fan_in.add(seat, publishes, charged)


def _when_visible(shared: Surroundings, group: int, caller: Caller, confirm: Confirm) -> None:
    """Confirm a batch that is committed once nothing can come before it in its topic's order."""

    def then(visible: bool) -> None:
        if visible:
            shared.outbox.reply(caller, confirm)
        else:
            slow = Unavailable(
                "it is committed, but not all of the topic's partitions have got so far, or can: "
                "send it again to wait on"
            )
            shared.outbox.refuse(caller, slow)

    try:
        shared.when_visible(group, confirm.stamp, caller.session, then)
    except Refused as error:
        shared.outbox.refuse(caller, error)


def _received(confirm: Confirm) -> Confirm:
    """Return what level `received` promises: no offset, which may still become another's."""
    return Confirm(-1, confirm.stamp, confirm.duplicate)
