"""The link dialect: what shards of different nodes say to each other, on the port that all share.

A connection is opened by the side that sends, and carries one lane. Each side begins with a
*greeting*, 3 u8, 1 byte 0, length u16 of the body, and a body in MessagePack: the hello of who
dialled, the answer of who was. Behind them come frames: those of the trunk dialect, both ways, on
a trunk lane; else, one way, kind u8, 3 bytes 0, length u32 of the body, group u64, body. What a
kind means is for those who replicate, but for `PING`, which is sent back as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b
from hmac import compare_digest
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from weir.codec import Buffer, total
from weir.errors import RemoteProtocolError
from weir.model.ids import NODE_MAX, Natural
from weir.model.limits import (
    HOST_CHARACTERS_MAX,
    JOIN_KEY_BYTES,
    LINK_FRAME_BYTES_MAX,
    LINK_HELLO_BYTES_MAX,
    LOGS_MAX,
)
from weir.protocol.frame import Reassembler

#: The first byte of a connection in this dialect.
LINK_VERSION = 3
#: What the two sides of a link must have in common beyond that.
LINK_PROTOCOL = 1
#: The kind of frames that only ask whether the other side is there; no group of theirs is one.
PING = 0
PROOF_BYTES = 16

_G = TypeVar("_G", "LinkHello", "LinkAnswer")
LINK_HEADER = struct.Struct("<B3xIQ")
_HEADER_SIZE = LINK_HEADER.size
_GREETING = struct.Struct("<BxH")
_ASKED = struct.Struct("<QQQ")
_SAID = struct.Struct("<QQQQ")

Shards = Annotated[int, Meta(ge=1, le=LOGS_MAX)]
ShardNumber = Annotated[int, Meta(ge=0, lt=LOGS_MAX)]
Node = Annotated[int, Meta(ge=1, le=NODE_MAX)]
Proof = Annotated[bytes, Meta(max_length=PROOF_BYTES)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class Lane(IntEnum):
    """What a connection carries. Large frames of one lane never delay another."""

    TRUNK = 1  # requests of peers that others serve, and what comes back
    BULK = 2  # entries, snapshots, refills
    QUICK = 3  # beats, votes, replies: all that must not wait


class Verdict(IntEnum):
    """What comes of a hello; all but the first end the connection."""

    ACCEPTED = 0
    ELSEWHERE = 1  # another shard of that node answered: dial its own port
    STRANGER = 2  # of another system or number of logs, or another BrokerSet or node than meant
    UNKNOWN_PROTOCOL = 3
    REMOVED = 4  # the node was removed from the set
    UNCLEAR = 5  # the hello makes no sense here


class LinkHello(msgspec.Struct, array_like=True, frozen=True):
    """The dialling node, the lane, and the node that it expects to reach. `run` is drawn when a
    process starts.

    `host` and `port` are the address of the dialling node itself; empty and 0 if it does not know.
    `birth` was drawn when its folder was founded; it is not told to a node that is in no registry.
    `proof` proves to nodes that know the birth that this hello is from that folder (`vouch`), and
    reveals nothing to others. The answer must prove its own birth by `nonce`. `joins` proves to
    nodes that expect this one that it is the one that was added (`announce`); nodes that were not
    added leave it out.
    """

    protocol: Natural
    system: Natural
    brokerset: Natural
    node: Node
    shard: ShardNumber
    shards: Shards
    logs: Shards
    level: Natural
    run: Natural
    lane: Lane
    to_node: Node
    to_shard: ShardNumber
    host: Annotated[str, Meta(max_length=HOST_CHARACTERS_MAX)] = ""
    port: Port = 0
    birth: Natural = 0
    nonce: Natural = 0
    proof: Proof = b""
    joins: Proof = b""


class LinkAnswer(msgspec.Struct, array_like=True, frozen=True):
    """What came of a hello, and who says so; `ports` are the own ports of the node's shards, by
    number, or none if it has but one. `proof` shows who knows the node's birth that it is that
    node's folder, and nobody else anything (`prove`). Earlier releases told their `birth` instead.
    A node that was removed, since another set was promoted without it, is told in which `lineage`
    the groups go on there.
    """

    verdict: Natural
    reason: str
    node: Node
    shard: ShardNumber
    shards: Shards
    level: Natural
    run: Natural
    ports: Annotated[tuple[Port, ...], Meta(max_length=LOGS_MAX)] = ()
    birth: Natural = 0
    proof: Proof = b""
    lineage: Natural = 0


def prove(birth: int, hello: LinkHello) -> bytes:
    """Return the digest, keyed by a birth, of what a hello asks for: system, node and nonce. It is
    empty if the node has no birth, or the hello comes from a release that asks for no proof.
    """
    if not (birth and hello.nonce):
        return b""
    asked = _ASKED.pack(hello.system, hello.to_node, hello.nonce)
    return blake2b(asked, digest_size=PROOF_BYTES, key=birth.to_bytes(8, "little")).digest()


def vouch(birth: int, hello: LinkHello) -> bytes:
    """Return the digest, keyed by a birth, of the sender and the receiver of a hello: at another
    node it proves nothing. Empty if the node has no birth.
    """
    if not birth:
        return b""
    said = _SAID.pack(hello.system, hello.node, hello.to_node, hello.nonce)
    key = birth.to_bytes(8, "little")
    return blake2b(said, digest_size=PROOF_BYTES, key=key, person=b"hello").digest()


def join_key(secret: bytes) -> bytes:
    """Return what a set keeps of the secret by which a node joins it."""
    return blake2b(secret, digest_size=JOIN_KEY_BYTES, person=b"join key").digest()


def announce(key: bytes, hello: LinkHello) -> bytes:
    """Return the digest, keyed by a `join_key`, of the sender and the receiver of a hello, and of
    the birth in it. Empty without a key.
    """
    if not key:
        return b""
    said = _SAID.pack(hello.system, hello.node, hello.to_node, hello.nonce)
    birth = hello.birth.to_bytes(8, "little")
    return blake2b(said + birth, digest_size=PROOF_BYTES, key=key, person=b"join").digest()


def is_expected(hello: LinkHello, key: bytes) -> bool:
    """Whether the sender of a hello has the secret of a key."""
    return bool(key and hello.joins) and compare_digest(hello.joins, announce(key, hello))


def is_from(hello: LinkHello, birth: int) -> bool:
    """Whether a hello can come from the folder that has a birth."""
    if hello.proof:
        return compare_digest(hello.proof, vouch(birth, hello))
    return hello.birth == birth


def is_of(answer: LinkAnswer, hello: LinkHello, birth: int) -> bool:
    """Whether the answer to a hello can come from the folder that has a birth."""
    if answer.proof:
        return compare_digest(answer.proof, prove(birth, hello))
    return answer.birth in (0, birth)


class LinkFrame(msgspec.Struct, frozen=True):
    """A link frame taken apart; `body` is a view that keeps its bytes alive."""

    kind: int
    group: int
    body: memoryview


def encode(kind: int, group: int, *body: Buffer) -> tuple[Buffer, ...]:
    """Return the buffers of a frame; the body's are among them as they are, uncopied."""
    return (LINK_HEADER.pack(kind, total(body), group), *body)


def encode_greeting(greeting: LinkHello | LinkAnswer) -> bytes:
    """Return the bytes that a side begins with."""
    last = greeting.joins if isinstance(greeting, LinkHello) else greeting.lineage
    if not last:  # as releases wrote it that did not know it
        body = msgspec.msgpack.encode(msgspec.structs.astuple(greeting)[:-1])
    else:
        body = msgspec.msgpack.encode(greeting)
    return _GREETING.pack(LINK_VERSION, len(body)) + body


def decode_hello(body: Buffer) -> LinkHello:
    """Read the greeting of who dialled. Raises `RemoteProtocolError`."""
    return _read(_HELLO, body)


def decode_answer(body: Buffer) -> LinkAnswer:
    """Read the greeting of who was dialled. Raises `RemoteProtocolError`."""
    return _read(_ANSWER, body)


class Greeting:
    """The greeting of the other side, as it comes in; nothing may come behind it yet."""

    __slots__ = ("_reassembler",)

    def __init__(self) -> None:
        """Start at the first byte of the connection."""
        self._reassembler = Reassembler(_GREETING.size, _greeting_size)

    def receive(self, data: bytes) -> memoryview | None:
        """Take bytes as they come; return the body once it is whole. Raises
        `RemoteProtocolError`.
        """
        found = self._reassembler.receive(data)
        if not found:
            return None
        if len(found) > 1 or self._reassembler.pending:
            raise RemoteProtocolError("a link's greeting has an answer before anything else")
        return found[0][_GREETING.size :]


class LinkStream:
    """Frames of a lane that is no trunk, either side."""

    __slots__ = ("_reassembler", "pending")

    def __init__(self) -> None:
        """Start behind the greetings."""
        self._reassembler = Reassembler(LINK_HEADER.size, _size)
        #: Bytes held for a frame that is not whole yet.
        self.pending = 0

    def receive(self, data: bytes) -> Sequence[LinkFrame]:
        """Take bytes as they come, return whole frames. Raises `RemoteProtocolError`."""
        found = []
        for view in self._reassembler.receive(data):
            kind, _, group = LINK_HEADER.unpack_from(view)
            found.append(LinkFrame(kind, group, view[_HEADER_SIZE:]))
        self.pending = self._reassembler.pending
        return found


_HELLO = msgspec.msgpack.Decoder(LinkHello)
_ANSWER = msgspec.msgpack.Decoder(LinkAnswer)


def _size(view: memoryview, at: int) -> int:
    _, length, _ = LINK_HEADER.unpack_from(view, at)
    if length > LINK_FRAME_BYTES_MAX:
        raise RemoteProtocolError(
            f"a link frame of {length:,} bytes; {LINK_FRAME_BYTES_MAX:,} allowed"
        )
    return _HEADER_SIZE + int(length)


def _greeting_size(view: memoryview, at: int) -> int:
    version, length = _GREETING.unpack_from(view, at)
    if version != LINK_VERSION:
        raise RemoteProtocolError(f"a link begins with {LINK_VERSION}, not {version}")
    if length > LINK_HELLO_BYTES_MAX:
        raise RemoteProtocolError(
            f"a greeting of {length:,} bytes; {LINK_HELLO_BYTES_MAX:,} allowed"
        )
    return int(_GREETING.size + length)


def _read(decoder: msgspec.msgpack.Decoder[_G], body: Buffer) -> _G:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a link's greeting makes no sense: {error}") from None
