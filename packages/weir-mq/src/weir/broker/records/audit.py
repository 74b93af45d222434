"""Control records of the registry about its audit trail."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weir.model.ids import LIMIT_MAX

#: What a message of the audit topic says came of what was asked.
Outcome = Literal["committed", "allowed", "refused", "would-be-refused", "dropped"]
Number = Annotated[int, Meta(ge=0, le=LIMIT_MAX)]


class AuditEvent(msgspec.Struct, frozen=True):
    """A message of the audit topic, which is this as JSON. Fields are added at the end.

    `at` is in ms since 1970, `count` how often it happened within that second, `access_version` the
    version of the rules by which it was decided. `resource` has its namespace in front.
    """

    #: `change:INDEX` of an entry of the registry, or `shard:NODE.SHARD:PRODUCER:SEQUENCE`.
    id: str
    at: int
    #: The principal, and the address that it came from; "" if there is none.
    who: str
    whence: str
    verb: str
    kind: str
    resource: str
    outcome: Outcome
    count: int
    access_version: int
    #: More about it; of what was or would be refused the rule that is missing.
    detail: str = ""
    missing: str = ""


encode_event = msgspec.json.Encoder().encode


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A control record of the audit trail."""


class AuditProducerOpened(_Record, frozen=True, array_like=True, tag="audit-producer"):
    """Registry: changes are published by this producer id, the stamp of this record, from number 0
    on, unless another one than `before` does so by now.
    """

    producer: Number
    before: Number


class AuditPublished(_Record, frozen=True, array_like=True, tag="audit-published"):
    """Registry: the audit topic has the changes that `producer` publishes below this number."""

    producer: Number
    below: Number


AuditRecord = AuditProducerOpened | AuditPublished
