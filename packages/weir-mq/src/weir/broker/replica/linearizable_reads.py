"""Answers that hold against what any other node may have done meanwhile (ReadIndex)."""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller, Outbox
from weir.errors import Refused


def assured(group: Group, outbox: Outbox, caller: Caller, tell: Callable[[], None]) -> None:
    """Let `tell` answer `caller` once no other node can have led `group` before now; or refuse it.

    What nobody else has of a damaged group is read as it lies. A grant needs no such round: its
    messages leave when its entry is committed.
    """

    def then(error: Refused | None) -> None:
        try:
            if error is not None:
                raise error
            tell()
        except Refused as refused:
            outbox.refuse(caller, refused)

    if group.is_read_as_it_lies:
        tell()
    else:
        group.read(then)
