"""Numbers of so many bits: what a field of a binary dialect holds, where MessagePack carries it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Unsigned8 = Annotated[int, Meta(ge=0, le=0xFF)]
Unsigned16 = Annotated[int, Meta(ge=0, le=0xFFFF)]
Unsigned32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
#: MessagePack has no larger one.
Unsigned64 = Annotated[int, Meta(ge=0)]
