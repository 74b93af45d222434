"""What a consumer cluster promises about order (DESIGN §5 Consume)."""

from __future__ import annotations

from enum import IntEnum


class Mode(IntEnum):
    """How a cluster shares a topic's messages; its first grant sets it for good."""

    #: Each message to one consumer, in no order.
    SHARED = 0
    #: Shared, and the messages of a key in order, one consumer at a time.
    KEYED = 1
    #: One consumer at a time gets everything, in order; the others stand by.
    ORDERED = 2


class AckOutcome(IntEnum):
    """What an ack did to messages of a grant."""

    #: This grant did them: this ack marked them as done, or an earlier one of the same grant did.
    DONE = 0
    #: The grant had lost them. Another grant did them, or retention or a seek passed over them.
    DONE_ELSEWHERE = 1
    #: The grant had lost them, and they are not done: the cluster does them again.
    EXPIRED = 2
    #: Several of the above.
    PARTLY = 3
