"""What all control records of a group share: MessagePack arrays with a tag, and their numbers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weir.model.ids import LIMIT_MAX, PARTITIONS_MAX

#: What fits a signed field: a stamp of the past may lie before the first one there is.
Number = Annotated[int, Meta(le=LIMIT_MAX)]
Partition = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A control record."""
