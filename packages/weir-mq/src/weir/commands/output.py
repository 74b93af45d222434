"""How messages are written: as text for people, or as JSON for programs; one in each line."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from weir.model.message import Message


class Form(StrEnum):
    """How a message is written."""

    text = "text"
    json = "json"


class Output(Protocol):
    """Where messages are written. Both raise `BrokenPipeError` if nobody reads any more."""

    def write(self, data: bytes, /) -> object:
        """Take bytes, which may wait."""

    def flush(self) -> object:
        """Let whoever reads have all that was written."""


def line_of(form: Form) -> Callable[[Message], bytes]:
    """Return what makes a line of a message."""
    return as_json if form is Form.json else as_text


def as_text(message: Message) -> bytes:
    """Return a message as one line: where it is, its key and tag if it has them, its value."""
    parts = [f"{message.partition}/{message.offset}"]
    if message.key is not None:
        parts.append(f"key={printable(message.key)}")
    if message.tag is not None:
        parts.append(f"tag={printable(message.tag.encode())}")
    if message.loaded:
        parts.append(printable(message.value))
    else:
        parts.append(f"({message.size:,} bytes, too large to show)")
    return "  ".join(parts).encode() + b"\n"


def printable(data: bytes) -> str:
    """Return bytes as text that cannot move a terminal's cursor or break a line."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_json(message: Message) -> bytes:
    """Return a message as a JSON object in one line; bytes that are no text come as base64."""
    import msgspec

    fields: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "stamp": message.stamp,
        "time_us": message.time,
        **_text_or_base64("key", message.key),
        "tag": message.tag,
        **_text_or_base64("value", message.value if message.loaded else None),
        **({} if message.loaded else {"value_bytes": message.size}),
        "headers": [
            {"name": name, **_text_or_base64("value", data)}
            for name, data in message.headers.items()
        ],
    }
    return msgspec.json.encode(fields) + b"\n"


def _text_or_base64(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": data}
