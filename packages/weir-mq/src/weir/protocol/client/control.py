"""What control bodies of the client dialect have in common."""

from __future__ import annotations

import msgspec


class Control(msgspec.Struct, frozen=True, array_like=True):
    """A control body: a MessagePack array of its fields."""
