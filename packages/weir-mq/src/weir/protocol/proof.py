"""A device's hello and proof, and the frames that are signed behind it (`weir.access.devices`).

    opcode 1  hello      -> u16 code 66, u64 system id, u8 level, 16 bytes of the broker's nonce
    opcode 12 prove      u32 generation, u8 version of the fleet key, u8 level, 16 bytes of the
              device's nonce, 32 bytes of its proof
              -> u16 code, u64 system id, 32 bytes of the broker's proof; after an error the code

A signed frame has 0x4000 in its opcode, and ends in 8 bytes of MAC before the check byte; they
count in its length. Behind a proof at level 2 all frames are signed, both ways, from the first one
after the reply on. What does not fit ends the connection: nothing of it is done.
"""

from __future__ import annotations

import struct

import msgspec

from weir.access.devices import (
    MAC_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Claim,
    FrameMac,
    Nonce,
    Proof,
    check_proof,
)
from weir.codec import Unsigned8, Unsigned16, Unsigned32, Unsigned64
from weir.errors import ProofNeeded, RemoteProtocolError
from weir.protocol.frame import DEVICE_HEADER, xor

#: The opcode of a proof, and of the reply to it.
PROVE = 12
PROVEN = PROVE | 0x8000
#: In the opcode of a frame that has a MAC.
SIGNED = 0x4000

_HELLO = struct.Struct(">QIH")
_CHALLENGE = struct.Struct(f">HQB{NONCE_BYTES}s")
_PROOF = struct.Struct(f">IBB{NONCE_BYTES}s{PROOF_BYTES}s")
_PROVEN = struct.Struct(f">HQ{PROOF_BYTES}s")


class DeviceHello(msgspec.Struct, frozen=True, array_like=True):
    """A hub names itself, its boot count, and where its messages go."""

    sn: Unsigned8
    hub: Unsigned64
    boot: Unsigned32
    partition: Unsigned16
    topic: str

    def pack(self) -> bytes:
        """Return the body."""
        return _HELLO.pack(self.hub, self.boot, self.partition) + self.topic.encode()

    @classmethod
    def unpack(cls, sn: int, body: bytes) -> DeviceHello:
        """Read a body. Raises `struct.error` or `UnicodeDecodeError`."""
        hub, boot, partition = _HELLO.unpack_from(body)
        return cls(sn, hub, boot, partition, body[_HELLO.size :].decode())


class Challenge(msgspec.Struct, frozen=True, array_like=True):
    """The reply to the hello of a hub that must prove itself: at which level at least."""

    system: Unsigned64
    level: Unsigned8
    nonce: Nonce

    def pack(self) -> bytes:
        """Return the body."""
        return _CHALLENGE.pack(ProofNeeded.code, self.system, self.level, self.nonce)

    @classmethod
    def unpack(cls, body: bytes) -> Challenge:
        """Read a body. Raises `RemoteProtocolError`."""
        try:
            _, system, level, nonce = _CHALLENGE.unpack(body)
        except struct.error:
            raise RemoteProtocolError("a challenge has another size") from None
        return cls(system, level, nonce)


class Proven(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a proof that was right: the broker's own."""

    system: Unsigned64
    proof: Proof

    def pack(self) -> bytes:
        """Return the body."""
        return _PROVEN.pack(0, self.system, self.proof)

    @classmethod
    def unpack(cls, body: bytes) -> Proven:
        """Read a body. Raises `RemoteProtocolError`."""
        try:
            _, system, proof = _PROVEN.unpack(body)
        except struct.error:
            raise RemoteProtocolError("a broker's proof has another size") from None
        return cls(system, proof)


class DeviceProof(msgspec.Struct, frozen=True, array_like=True):
    """A device answers the challenge that followed its hello."""

    sn: Unsigned8
    generation: Unsigned32
    key_version: Unsigned8
    level: Unsigned8
    nonce: Nonce
    proof: Proof

    def pack(self) -> bytes:
        """Return the body."""
        return _PROOF.pack(self.generation, self.key_version, self.level, self.nonce, self.proof)

    @classmethod
    def unpack(cls, sn: int, body: bytes) -> DeviceProof:
        """Read a body. Raises `struct.error`."""
        return cls(sn, *_PROOF.unpack(body))

    def claim(self, asked: Challenge, hello: DeviceHello) -> Claim:
        """Return what this proves if it is right, of a hello and the challenge that followed it."""
        return Claim(
            asked.system, hello.hub, self.generation, self.key_version, hello.boot,
            hello.partition, self.level, hello.topic, asked.nonce, self.nonce,
        )  # fmt: skip


class DeviceProven(msgspec.Struct, frozen=True, array_like=True):
    """A device's hello, forwarded by the shard that has checked its identity; no device sends it.

    `proof` is the broker's own, which goes to the device where its hello is taken; None for one
    that has shown a certificate: its hello has the usual reply.
    """

    sn: Unsigned8
    hello: DeviceHello
    generation: Unsigned32
    proof: Proof | None


class FrameSigner:
    """Signs whole frames of one way, in order."""

    __slots__ = ("_counter", "_mac")

    def __init__(self, key: bytes, counter: int = 0) -> None:
        """Sign with `key`, the first frame as number `counter`."""
        self._mac = FrameMac(key)
        self._counter = counter

    def sign(self, frames: bytes) -> bytes:
        """Return the frames, each with its MAC. Raises `ValueError` if the last one is cut."""
        signed: list[bytes] = []
        at = 0
        while at < len(frames):
            behind = _behind(frames, at)
            version, length, opcode, sn = DEVICE_HEADER.unpack_from(frames, at)
            head = DEVICE_HEADER.pack(version, length + MAC_BYTES, opcode | SIGNED, sn)
            content = head + frames[at + DEVICE_HEADER.size : behind - 1]
            at = behind
            content += self._mac.of(self._counter, content)
            self._counter += 1
            signed += content, bytes((xor(content),))
        return b"".join(signed)


class FrameOpener:
    """Checks signed frames of one way, in order, and returns what was signed."""

    __slots__ = ("_counter", "_mac")

    def __init__(self, key: bytes, counter: int = 0) -> None:
        """Expect frames that are signed with `key`, the first as number `counter`."""
        self._mac = FrameMac(key)
        self._counter = counter

    def open(self, frame: bytes) -> bytes:
        """Return a frame without its MAC. Raises `RemoteProtocolError` if it was not signed as the
        next one: it was changed, repeated, left out, or comes from somebody else.
        """
        version, length, opcode, sn = DEVICE_HEADER.unpack_from(frame)
        if not opcode & SIGNED or length < MAC_BYTES or xor(frame):
            raise RemoteProtocolError("a frame is not signed, or changed on its way: connect again")
        mac_at = len(frame) - 1 - MAC_BYTES
        expected = self._mac.of(self._counter, frame[:mac_at])
        if not check_proof(expected, frame[mac_at:-1]):
            raise RemoteProtocolError(
                "a signed frame is not the next one of this connection: connect again"
            )
        self._counter += 1
        head = DEVICE_HEADER.pack(version, length - MAC_BYTES, opcode ^ SIGNED, sn)
        plain = head + frame[DEVICE_HEADER.size : mac_at]
        return plain + bytes((xor(plain),))


class ReplySigner:
    """Signs what a broker sends behind its reply to a proof; that reply itself is not signed by
    this key, because the device has it only then.
    """

    __slots__ = ("_before", "_begins", "_signer")

    def __init__(self, key: bytes, before: ReplySigner | None) -> None:
        """Sign with `key`, and up to the reply as `before` does."""
        self._signer = FrameSigner(key)
        self._before = before
        self._begins = False

    def sign(self, frames: bytes) -> bytes:
        """Return whole frames, those signed that are to be. Raises `ValueError` if one is cut."""
        if self._begins:
            return self._signer.sign(frames)
        at = 0
        while at < len(frames) and not self._begins:
            behind = _behind(frames, at)
            self._begins = DEVICE_HEADER.unpack_from(frames, at)[2] == PROVEN
            at = behind
        first, before = frames[:at], self._before
        if self._begins:
            self._before = None
        return (first if before is None else before.sign(first)) + self._signer.sign(frames[at:])


def _behind(frames: bytes, at: int) -> int:
    """Return where the frame at `at` ends. Raises `ValueError` if it is cut."""
    behind = at + DEVICE_HEADER.size + 1
    if behind <= len(frames):
        behind += DEVICE_HEADER.unpack_from(frames, at)[1]
    if behind > len(frames):
        raise ValueError("only whole frames can be signed")
    return behind
