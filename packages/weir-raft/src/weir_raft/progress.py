"""What a leader knows of one member, for the host to show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ProgressState(Enum):
    """How a leader sends to a member."""

    #: One message at a time, to find where the logs agree.
    PROBE = "probe"
    #: A window of messages ahead of their replies.
    REPLICATE = "replicate"
    #: What it needs is no longer in the log.
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Progress:
    """One member as its leader sees it."""

    member: int
    #: Through here its log is durable and the same as the leader's.
    match: int
    state: ProgressState
    #: Bytes sent and not acknowledged.
    inflight_bytes: int
    #: Through here entries are there or on their way.
    sent: int
