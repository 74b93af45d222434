"""A message, as a person writes and reads it. The data path moves batches instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Message(NamedTuple):
    """One message. `time` is microseconds since 1970; `offset` and `stamp` are the leader's."""

    value: bytes
    key: bytes | None = None
    tag: str | None = None
    time: int = 0
    headers: Mapping[str, bytes] = {}
    topic: str = ""
    partition: int = -1
    offset: int = -1
    stamp: int = -1
