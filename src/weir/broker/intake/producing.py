"""A client's batch on its way in: what is checked in which order, and when its sender is told."""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.entries import BatchRecord
from weir.broker.intake.intake import Intake
from weir.broker.outbox import Caller
from weir.broker.surroundings import Surroundings
from weir.errors import Refused
from weir.model.batch import Batch
from weir.model.header import Columns, Header
from weir.wire.messages import Confirm, Level, Produce

_CHUNK = int(Columns.CHUNK)


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
    early = request.level == Level.RECEIVED and not batch.header.columns & _CHUNK
    if isinstance(verdict, Confirm):
        shared.outbox.reply(caller, _received(verdict) if early else verdict)
        return False
    repeats = verdict is not None
    if verdict is None:
        intake.check_seen(request.seen)
        shared.budget.check(batch.header.raw_size)
        intake.look_into(batch)
        intake.check_large(batch)
        check_dues(batch)
        shared.budget.charge(len(request.batch))
        verdict = intake.accept(batch, request.seen)
        verdict.charged = len(request.batch)

    def confirm(outcome: BatchRecord | Refused) -> None:
        if isinstance(outcome, Refused):
            shared.outbox.refuse(caller, outcome)
        else:
            reply = intake.confirm(outcome, repeats)
            shared.outbox.reply(caller, _received(reply) if early else reply)

    # One that was cut already may be durable, or not: whoever repeats it waits for the commit.
    (verdict.early if early and not repeats else verdict.waiting).append(confirm)
    return not repeats


def _received(confirm: Confirm) -> Confirm:
    """Return what level `received` promises: no offset, which may still become another's."""
    return Confirm(-1, confirm.stamp, confirm.duplicate)
