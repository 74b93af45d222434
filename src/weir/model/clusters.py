"""What a consumer cluster promises about order (DESIGN §5 Consume)."""

from __future__ import annotations

from enum import IntEnum


class Mode(IntEnum):
    """How a cluster shares a topic's messages out; it is chosen by its first grant, for good."""

    #: Each message to one consumer, in no order.
    SHARED = 0
    #: Shared, and the messages of a key in order, one consumer at a time.
    KEYED = 1
    #: One consumer at a time gets everything, in order; the others stand by.
    ORDERED = 2
