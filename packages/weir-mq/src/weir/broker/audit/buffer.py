"""What a shard has seen of logins, denials and first uses, until it is published.

What happens again before it is published is counted, not kept again: a flood of failing logins is
one message a second. The buffer is bounded, and what found no room is counted and said.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from weir.broker.records.audit import AuditEvent, Outcome
from weir.broker.runtime.session import Session
from weir.model.limits import AUDIT_EVENTS_MAX
from weir.order.clock import Time

#: So much is told of a name that somebody gave.
_CLAIMED_MAX = 300


class AuditedSet(Protocol):
    """What says whether the set is audited."""

    @property
    def is_audited(self) -> bool:
        """Whether there is an audit topic, or is to be one."""


class Seen(NamedTuple):
    """What is counted together."""

    who: str
    whence: str
    verb: str
    kind: str
    resource: str
    outcome: Outcome
    access_version: int
    detail: str = ""
    missing: str = ""


class _Row(msgspec.Struct):
    at_ms: int
    count: int


class AuditBuffer:
    """Rows by what happened, the oldest first."""

    __slots__ = ("_audited", "_rows", "_time", "dropped", "untold")

    def __init__(self, audited: AuditedSet, time: Time) -> None:
        """Keep nothing unless the set is `audited`."""
        self._audited = audited
        self._time = time
        self._rows: dict[Seen, _Row] = {}
        #: What found no room since the shard started; and how much of that is not told yet.
        self.dropped = 0
        self.untold = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, seen: Seen) -> None:
        """Something happened."""
        if not self._audited.is_audited:
            return
        row = self._rows.get(seen)
        if row is not None:
            row.count += 1
        elif len(self._rows) < AUDIT_EVENTS_MAX:
            self._rows[seen] = _Row(self._time.wall_ms(), 1)
        else:
            self.dropped += 1
            self.untold += 1

    def login(
        self, session: Session, mechanism: str, user: str, outcome: Outcome, version: int
    ) -> None:
        """Somebody logged in by a mechanism as a user, or tried to."""
        self.add(
            Seen(
                session.principal, session.address, "login", "user", user[:_CLAIMED_MAX], outcome,
                version, mechanism,
            )
        )  # fmt: skip

    def take(self, most: int, source: str, first: int) -> list[AuditEvent]:
        """Take out up to so many rows; `source` and their sequences, from `first` on, name them.

        What was dropped is told before them.
        """
        found: list[AuditEvent] = []
        if self.untold:
            now, count, self.untold = self._time.wall_ms(), self.untold, 0
            found.append(
                AuditEvent(
                    f"{source}:{first}", now, "", "", "drop", "audit", "", "dropped", count, 0,
                    "the buffer was full: so many events are not here",
                )
            )  # fmt: skip
        for seen in list(self._rows)[: most - len(found)]:
            row = self._rows.pop(seen)
            who, whence, verb, kind, resource, outcome, version, detail, missing = seen
            found.append(
                AuditEvent(
                    f"{source}:{first + len(found)}", row.at_ms, who, whence, verb, kind, resource,
                    outcome, row.count, version, detail, missing,
                )
            )  # fmt: skip
        return found
