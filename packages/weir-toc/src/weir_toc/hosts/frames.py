"""Frames of the control protocol over TCP: u32 length, big-endian, a tag, and the rest.

The tag "j" stands before a JSON object with the key "op", "r" before a message of
`weir_raft.codec`. A frame above the limit of its side ends the connection before it is read.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from weir_toc.errors import ControlError, InvalidUse

JSON, RAFT = b"j", b"r"
#: What members send each other, snapshots in pieces of 1 MiB included, and what nodes are sent.
FRAME_BYTES_MAX = 4 << 20
#: What a node may send.
REQUEST_BYTES_MAX = 64 << 10
#: A node that leaves so much unread is disconnected.
UNREAD_BYTES_MAX = 8 << 20

#: What is sent holds nothing that holds itself.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

Frame = dict[str, Any]
Address = tuple[str, int]


def framed(tag: bytes, body: bytes) -> bytes:
    """Return a frame as it is sent."""
    return (1 + len(body)).to_bytes(4, "big") + tag + body


def framed_json(frame: Frame) -> bytes:
    """Return a frame of a JSON object."""
    return framed(JSON, _encode(frame).encode())


async def read_frame(reader: asyncio.StreamReader, bytes_max: int) -> tuple[bytes, bytes]:
    """Return tag and body of the next frame. Raises EOFError at the end, or ControlError."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if not 0 < size <= bytes_max:
        raise ControlError(f"a frame of {size} bytes: 1 to {bytes_max} are allowed")
    frame = await reader.readexactly(size)
    return frame[:1], frame[1:]


def parsed(tag: bytes, body: bytes) -> Frame:
    """Return the object of a frame. Raises ControlError unless it has an "op"."""
    if tag != JSON:
        raise ControlError(f"a frame with tag {tag!r} is not expected here")
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"a frame that is no JSON: {error}") from error
    if not isinstance(frame, dict) or not isinstance(frame.get("op"), str):
        raise ControlError('a frame has no "op"')
    return frame


def number_in(frame: Frame, key: str) -> int:
    """Return an integer of 0 to 2^63 - 1 from a frame. Raises ControlError without one."""
    value = frame.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ControlError(f"the number {key!r} is missing in a frame {frame.get('op')!r}")
    return value


def text_in(frame: Frame, key: str) -> str:
    """Return a text of 1 to 255 characters from a frame. Raises ControlError without one."""
    value = frame.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 255:
        raise ControlError(
            f"the text {key!r} of a frame {frame.get('op')!r} has 1 to 255 characters"
        )
    return value


def socket_in(frame: Frame) -> Address:
    """Return the numeric "host" and the "port" of a frame. Raises ControlError without them.

    Others send there without asking what a name means.
    """
    host, port = text_in(frame, "host"), number_in(frame, "port")
    try:
        ip_address(host)
    except ValueError as error:
        raise ControlError(f"{host[:80]!r} is no IP address") from error
    if not 0 < port < 1 << 16:
        raise ControlError(f"{port} is no port")
    return host, port


def addresses_of(url: str) -> list[Address]:
    """Return the addresses in `toc://host:port,host:port`. Raises InvalidUse for another form.

    Each is an address of its own: members are told apart by their places.
    """
    scheme, _, rest = url.partition("://")
    found: list[Address] = []
    for one in rest.strip("/").split(","):
        host, _, port = one.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            break
        found.append((host.strip("[]"), int(port)))
    else:
        if scheme == "toc" and len({*found}) < len(found):
            raise InvalidUse(f"{url!r} names an address twice: each member has its own")
        if scheme == "toc":
            return found
    raise InvalidUse(f"{url!r} is not of the form toc://host:port or toc://host:port,host:port")


def forward_of(node: int, packets: Iterable[bytes | bytearray]) -> Frame:
    """Return packets to forward to a process, or forwarded from one, as a frame."""
    return {"op": "forward", "node": node,
            "packets": [b64encode(one).decode("ascii") for one in packets]}  # fmt: skip


def packets_in(frame: Frame) -> list[bytes]:
    """Return the packets of such a frame. Raises ControlError if it holds none."""
    rows = frame.get("packets")
    try:
        return [b64decode(one, validate=True) for one in rows or ()]
    except (TypeError, ValueError) as error:
        raise ControlError(f"packets that are not in base 64: {error}") from error


async def ask_once(address: Address, frame: Frame, timeout: float = 3.0) -> Frame:
    """Send one member a request by a connection of its own; return its answer."""
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(framed_json(frame))
            return parsed(*await read_frame(reader, FRAME_BYTES_MAX))
        finally:
            writer.close()
