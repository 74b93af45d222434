"""The trunk dialect: what one shard of a node passes on to another, and what comes back.

A trunk has an asking and a serving end. The asking shard opens a *virtual session* for each of its
peers that wants something of the other shard; the serving shard knows them as if they were
connected to itself. Frame: kind u8, 3 bytes 0, length u32 of the body, session u64, body.
The other end may be another node, which may be broken or mean harm: a frame that makes no sense
ends the trunk, before a shard is told anything of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, get_args

import msgspec

from weir.access.tokens import SessionToken
from weir.codec import Buffer, total
from weir.errors import RemoteProtocolError
from weir.model.ids import Natural
from weir.model.limits import TRUNK_FRAME_BYTES_MAX
from weir.protocol.client.codec import client_frame_size
from weir.protocol.device import (
    HEADER,
    REPLY,
    DeviceHello,
    DeviceOpcode,
    DevicePublishes,
    DeviceRequest,
    encode_confirm,
    encode_welcome,
)
from weir.protocol.frame import (
    CLIENT_HEADER,
    CLIENT_VERSION,
    ClientFrame,
    Reassembler,
    take_client_frame,
)
from weir.protocol.proof import PROVEN

_HEADER = struct.Struct("<B3xIQ")
_DEVICE_KINDS: tuple[type[Any], ...] = get_args(DeviceRequest)
_DEVICE_NUMBERS = {kind: number for number, kind in enumerate(_DEVICE_KINDS)}
_DEVICE_DECODERS = [msgspec.msgpack.Decoder(kind).decode for kind in _DEVICE_KINDS]
_WELCOME = DeviceOpcode.HELLO | REPLY
_CONFIRMING = (DeviceOpcode.PUBLISH | REPLY, DeviceOpcode.PUBLISH_SEQUENCED | REPLY)
#: How long a reply to hello is.
WELCOME_BYTES = len(encode_welcome(0, 0, 0))
_CONFIRM_BYTES = len(encode_confirm(0, 0, 0, 0))
_pack = msgspec.msgpack.Encoder().encode
_unpack_numbered = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode

#: What separates a principal from what else is said of its session; no principal has it in it.
_MORE_FOLLOWS = b"\0"
#: The session of the asking shard itself; no peer ever has this number.
OWN_SESSION = (1 << 64) - 1


class Kind(IntEnum):
    """What a trunk frame says of its session. The serving end says replies, hangup and answers."""

    #: Body: the principal; to a node that supports level 3 also 0 and JSON of `Introduction`.
    OPENED = 1
    CLOSED = 2
    CLIENT = 3  # body: a request's whole client frame, as it came
    DEVICE = 4  # body: a device request
    REPLIES = 5  # body: whole frames for the peer, in its dialect
    HANGUP = 6  # body: the reason
    # Of many sessions, and between shards of one node only: those run one release.
    ARRIVALS = 7  # body: the principal, and for each session its hello and publishes
    ANSWERS = 8  # body: for each session whole frames for the peer


class Arrival(msgspec.Struct, array_like=True):
    """A device that connected, said hello and published at once."""

    session: int
    hello: DeviceHello
    publishes: DevicePublishes


class Introduction(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a session was let in: the address of its peer's machine, empty if it has none; the access
    version at which that was, 0 if it is not known; and the token, if it came by one.
    """

    address: str = ""
    admitted_at: Natural = 0
    token: SessionToken | None = None


class TrunkFrame(NamedTuple):
    """A trunk frame taken apart; `body` is a view that keeps its bytes alive. Of a client's request
    it is the `ClientFrame`, of a device's that request, of arrivals the principal and what each
    said (`Arrival`), and of answers each session and its replies.
    """

    kind: int
    session: int
    body: Any


def encode(kind: Kind, session: int, *body: Buffer) -> tuple[Buffer, ...]:
    """Return the buffers of a frame; the body's are among them as they are, uncopied."""
    return (_HEADER.pack(kind, total(body), session), *body)


def encode_opened(
    session: int, principal: str, introduction: Introduction | None = None
) -> tuple[Buffer, ...]:
    """Return the buffers that begin a session; brokers below level 3 know no introduction."""
    if introduction is None:
        return encode(Kind.OPENED, session, principal.encode())
    more = msgspec.json.encode(introduction)
    return encode(Kind.OPENED, session, principal.encode(), _MORE_FOLLOWS, more)


def decode_opened(body: Buffer) -> tuple[str, Introduction]:
    """Return the principal of a session that begins, and how it was let in. Raises `ValueError`."""
    principal, _, more = bytes(body).partition(_MORE_FOLLOWS)
    return principal.decode(), _read_introduction(more) if more else Introduction()


def encode_client(session: int, frame: ClientFrame) -> tuple[Buffer, ...]:
    """Return the buffers that pass a client's request on."""
    body = frame.body
    header = CLIENT_HEADER.pack(
        CLIENT_VERSION, frame.flags, frame.opcode, len(body), frame.correlation
    )
    return encode(Kind.CLIENT, session, header, body)


def encode_device(session: int, request: DeviceRequest) -> tuple[Buffer, ...]:
    """Return the buffers that pass a device's request on."""
    return encode(Kind.DEVICE, session, _pack((_DEVICE_NUMBERS[type(request)], request)))


def encode_arrivals(principal: str, arrivals: Sequence[Arrival]) -> tuple[Buffer, ...]:
    """Return the buffers that pass on devices which came at once."""
    return encode(Kind.ARRIVALS, 0, _pack((principal, arrivals)))


def encode_answers(answers: Sequence[tuple[int, bytes]]) -> tuple[Buffer, ...]:
    """Return the buffers of replies to many sessions, in order."""
    return encode(Kind.ANSWERS, 0, _pack(answers))


def count_confirms(replies: Buffer) -> int:
    """Return how many replies to publishes are in what a peer's other shard sent at once, behind a
    welcome or without one; 0 for replies of any other kind.
    """
    size, at = len(replies), 0
    if size < HEADER.size:
        return 0
    _, length, opcode, _ = HEADER.unpack_from(replies)
    first = HEADER.size + length + 1
    if opcode in (_WELCOME, PROVEN) and size >= first + HEADER.size:
        at = first
        _, _, opcode, _ = HEADER.unpack_from(replies, at)
    return (size - at) // _CONFIRM_BYTES if opcode in _CONFIRMING else 0


def one_client_frame(body: memoryview) -> ClientFrame:
    """Take apart a body that is one client frame. Raises `RemoteProtocolError` for another one."""
    if len(body) < CLIENT_HEADER.size or client_frame_size(body, 0) != len(body):
        raise RemoteProtocolError(f"{len(body):,} bytes of a trunk frame are not one client frame")
    return take_client_frame(body)


def _text(body: memoryview) -> memoryview:
    str(body, "utf-8")
    return body


def _opened(body: memoryview) -> memoryview:
    decode_opened(body)
    return body


def _device_request(body: Buffer) -> DeviceRequest:
    number, content = _unpack_numbered(body)
    if not 0 <= number < len(_DEVICE_DECODERS):
        raise ValueError(f"a device has no request {number}")
    request: DeviceRequest = _DEVICE_DECODERS[number](content)
    if isinstance(request, DevicePublishes):
        _check_columns(request)
    return request


def _arrivals(body: Buffer) -> tuple[str, list[Arrival]]:
    principal, arrivals = _unpack_arrivals(body)
    for one in arrivals:
        _check_columns(one.publishes)
    return principal, arrivals


def _check_columns(publishes: DevicePublishes) -> None:
    count = len(publishes.sns)
    others = publishes.sequences, publishes.values, publishes.codes
    if not count or any(len(column) != count for column in others):
        raise ValueError("the columns of publishes differ in length, or are empty")


_read_introduction = msgspec.json.Decoder(Introduction).decode
_unpack_arrivals = msgspec.msgpack.Decoder(tuple[str, list[Arrival]]).decode
_BODIES: dict[int, Callable[[memoryview], Any]] = {
    Kind.OPENED: _opened,
    Kind.CLIENT: one_client_frame,
    Kind.DEVICE: _device_request,
    Kind.HANGUP: _text,
    Kind.ARRIVALS: _arrivals,
    Kind.ANSWERS: msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode,
}


def _body(kind: int, body: memoryview) -> Any:
    read = _BODIES.get(kind)
    if read is None:
        return body
    try:
        return read(body)
    except (ValueError, RecursionError) as error:  # of msgspec, or of text that is none
        raise RemoteProtocolError(f"a trunk frame of kind {kind} makes no sense: {error}") from None


def _size(view: memoryview, at: int) -> int:
    _, length, _ = _HEADER.unpack_from(view, at)
    if length > TRUNK_FRAME_BYTES_MAX:
        raise RemoteProtocolError(
            f"a trunk frame of {length:,} bytes; {TRUNK_FRAME_BYTES_MAX:,} allowed"
        )
    return int(_HEADER.size + length)


class TrunkStream:
    """Frames of one trunk, either end."""

    __slots__ = ("_reassembler",)

    def __init__(self) -> None:
        """Start at the first byte."""
        self._reassembler = Reassembler(_HEADER.size, _size)

    @property
    def pending(self) -> int:
        """Bytes held for a frame that is not whole yet."""
        return self._reassembler.pending

    def receive(self, data: bytes) -> Sequence[TrunkFrame]:
        """Take bytes as they come, return whole frames. Raises `RemoteProtocolError`."""
        found = []
        for view in self._reassembler.receive(data):
            kind, _, session = _HEADER.unpack_from(view)
            found.append(TrunkFrame(kind, session, _body(kind, view[_HEADER.size :])))
        return found
