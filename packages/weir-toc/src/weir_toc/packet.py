"""Packets: 24 bytes of header, 16 of envelope, a payload. All integers are big-endian.

    offset  size
     0       6   stamp of the message
     6       6   best effort barrier       rewritten by every switch
    12       6   commit barrier            rewritten by every switch
    18       4   packet sequence number (PSN), per sender, receiver and service
    22       1   opcode
    23       1   flags; a switch may set ECN
    24       4   source process
    28       4   destination process, 0 for the neighbour on the link
    32       4   epoch of the sender's link
    36       4   CRC-32C
    40           payload, at most 1,400 bytes

The CRC covers all but the two barriers, the ECN flag and itself, so a switch forwards a packet
without computing one. Stamps and barriers are 48-bit nanoseconds that wrap after 78.2 hours. The
functions here return them unwrapped: as the integer nearest to a time that the reader gives.

The layout of the header is that of 1Pipe; its last six bytes and the envelope are ours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import chain
from operator import ge
from typing import NamedTuple, cast

from google_crc32c import value as crc32c

from weir_toc.errors import PacketError

HEADER_BYTES = 24
ENVELOPE_BYTES = 16
OVERHEAD_BYTES = HEADER_BYTES + ENVELOPE_BYTES
#: A larger payload is sent in fragments. With all headers it fits in an Ethernet frame.
PAYLOAD_BYTES_MAX = 1_400
PACKET_BYTES_MAX = OVERHEAD_BYTES + PAYLOAD_BYTES_MAX
#: What a packet takes in memory beside its payload, in bytes: objects of Python that hold it. By
#: tracemalloc that is 176 while a message waits, 317 until the program has taken it, and 401 for
#: the only fragment of one. Windows and budgets count it: else empty messages would take nothing.
PACKET_COST = 400

# Opcodes. They are part of the format: none is reused.
DATA_BE = 1
DATA_R = 2
ACK = 3
NAK = 4
BEACON = 5
RECALL = 6
RECALL_ACK = 7
CONNECT = 8
JOIN = 9
JOINED = 10
FENCED = 11

OPCODES = frozenset(range(DATA_BE, FENCED + 1))
#: Packets that the controller forwards where a path is cut, and those that answer them.
FORWARDED = frozenset({DATA_R, RECALL, CONNECT})
FORWARDED_ANSWERS = frozenset({ACK, RECALL_ACK})
#: So many bytes of packets are forwarded at once: a message of the largest size, and recalls.
FORWARD_BYTES_MAX = 44_000
#: Packets that a process takes from the switch of its rack alone.
_OF_SWITCHES = frozenset({BEACON, JOINED, FENCED})

# Flags.
#: The last fragment of a message.
END = 1
#: Congestion experienced: a switch sets it, the receiver echoes it in its ACK.
ECN = 2
#: The first fragment of a message.
BEGIN = 4
#: The only fragment of a message.
WHOLE = BEGIN | END
#: In an ACK: the sender must tell by CONNECT that it keeps the window.
CONFIRM = 8

#: The destination of packets that the neighbour on the link keeps.
NEIGHBOUR = 0

#: The stamp of packets that are no messages.
NO_STAMP = bytes(6)
_TO_NEIGHBOUR = bytes(4)
_WRAP = 1 << 48
_HALF = 1 << 47
_LOW = _WRAP - 1
_REST = struct.Struct(">IBBIII")
#: The stamp, what else the checksum covers but the payload, and the checksum.
_COVERED = struct.Struct(">6s12x18sI")
#: Both barriers, the second in two parts.
_BARRIERS = struct.Struct(">QI")
#: Source, destination and epoch.
_ADDRESSES = struct.Struct(">III")
#: All but the checksum; the stamp and the second barrier in two parts.
_HEAD = struct.Struct(">HIQIIBBIII")
#: The stamp, both barriers, each in two parts, and what all beacons of an epoch hold.
_BEACON = struct.Struct(">6sHIHI22s")
_NOT_ECN = 0xFF ^ ECN
_PSN_WRAP = 1 << 32
_PSN_LOW = _PSN_WRAP - 1
_PSN_HALF = 1 << 31


class Packet(NamedTuple):
    """One packet; times in nanoseconds, unwrapped by whoever decodes it."""

    opcode: int
    source: int
    to: int = NEIGHBOUR
    stamp: int = 0
    #: No best effort message that comes later on this link has a stamp below.
    barrier: int = 0
    #: All reliable messages at or below are acknowledged, and no others will be sent.
    commit: int = 0
    psn: int = 0
    flags: int = 0
    epoch: int = 0
    payload: bytes = b""


#: `Packet` of a tuple of all its fields, without a function of Python: each packet takes one.
_packet = cast("Callable[[tuple[object, ...]], Packet]", partial(tuple.__new__, Packet))


def packets_of(size: int) -> int:
    """The number of packets of a message of so many bytes: an empty one takes one."""
    return max(1, -(-size // PAYLOAD_BYTES_MAX))


def cost_of(size: int) -> int:
    """What a message of so many bytes takes of windows and budgets, in bytes."""
    return size + packets_of(size) * PACKET_COST


def unwrap(low: int, near: int) -> int:
    """Return the integer nearest to `near` whose low 48 bits are `low`."""
    return near + ((low - near + _HALF) & _LOW) - _HALF


def unwrap_psn(low: int, near: int) -> int:
    """Return the sequence number nearest to `near` whose low 32 bits are `low`."""
    return near + ((low - near + _PSN_HALF) & _PSN_LOW) - _PSN_HALF


def encode(packet: Packet) -> bytearray:
    """Return the bytes of a packet. Its times and PSN are cut to the bits that are sent."""
    return encode_of(packet, packet.source, packet.epoch, packet.barrier, packet.commit)


def encode_of(packet: Packet, source: int, epoch: int, barrier: int, commit: int) -> bytearray:
    """Return the bytes of a packet, where these stand instead of its own."""
    opcode, _, to, stamp, _, _, psn, flags, _, payload = packet
    times = ((stamp & _LOW) << 96 | (barrier & _LOW) << 48 | commit & _LOW).to_bytes(18, "big")
    rest = _REST.pack(psn & _PSN_LOW, opcode, flags, source, to, epoch)
    covered = rest if not flags & ECN else _REST.pack(
        psn & _PSN_LOW, opcode, flags & _NOT_ECN, source, to, epoch)  # fmt: skip
    crc = crc32c(b"".join((times[:6], covered, payload)))
    return bytearray(b"".join((times, rest, crc.to_bytes(4, "big"), payload)))


def encode_beacon(source: int, epoch: int, barrier: int, commit: int) -> bytearray:
    """Return the bytes of a beacon: all but its barriers is the same in an epoch of a link."""
    return bytearray(NO_STAMP + _both(barrier, commit) + _beacon_constant(source, epoch))


@lru_cache(maxsize=1_024)
def _beacon_constant(source: int, epoch: int) -> bytes:
    return constant_of(encode(Packet(BEACON, source, epoch=epoch)))


@lru_cache(maxsize=16)
def _both(barrier: int, commit: int) -> bytes:
    """Both barriers as they are sent: a switch sends the same ones on many links."""
    return ((barrier & _LOW) << 48 | commit & _LOW).to_bytes(12, "big")


def constant_of(beacon: bytes | bytearray) -> bytes:
    """Return what all beacons of an epoch of a link hold: all but the barriers, checksum included.

    It is empty for a packet that no switch keeps for itself, or that has a stamp or a payload.
    """
    if len(beacon) != OVERHEAD_BYTES or beacon[22] != BEACON or beacon[:6] != NO_STAMP:
        return b""
    return bytes(beacon[18:]) if beacon[28:32] == _TO_NEIGHBOUR else b""


def decode_beacons(beacons: Iterable[bytes], near: int) -> list[tuple[bytes | None, int, int]]:
    """Return of each beacon its constant and both barriers; None for a constant if it has a stamp.

    Nothing is checked here. One whose constant is known is undamaged: the checksum covers no more.
    """
    away = _HALF - near  # as `unwrap` does
    return [
        (
            constant if stamp == NO_STAMP else None,
            ((high << 32 | low) + away & _LOW) - away,
            ((commit_high << 32 | commit_low) + away & _LOW) - away,
        )
        for stamp, high, low, commit_high, commit_low, constant in _BEACON.iter_unpack(
            b"".join(beacons)
        )
    ]


def is_beacon(data: bytes | bytearray) -> bool:
    """Whether this looks like a beacon; it may be damaged."""
    return len(data) == OVERHEAD_BYTES and data[22] == BEACON


def encode_run(packet: Packet, payloads: Sequence[bytes]) -> bytearray:
    """Return packets behind each other, one for each payload; all payloads have one size.

    Stamps and PSNs follow each other from those of `packet` on, which is not marked. The best
    effort barrier of each is its own stamp if that is higher: the next one lies above.
    """
    count, length = len(payloads), len(payloads[0])
    size = OVERHEAD_BYTES + length
    stamps = range(packet.stamp, packet.stamp + count)
    stamped = _column("Q", count).pack(*stamps)
    barriers = stamped if packet.barrier <= packet.stamp else _column("Q", count).pack(
        *[max(packet.barrier, stamp) for stamp in stamps])  # fmt: skip
    numbered = _numbered(packet.psn & _PSN_LOW, count)
    rest = _REST.pack(0, packet.opcode, packet.flags, packet.source, packet.to, packet.epoch)
    # By columns: a byte of all packets at once. First what checksums cover, without gaps.
    step = 24 + length
    covered = bytearray((bytes(6) + rest).join((b"", *payloads)))
    for at in range(6):
        covered[at::step] = stamped[at + 2 :: 8]
    for at in range(4):
        covered[at + 6 :: step] = numbered[at::4]
    rows = chain.from_iterable(_column("s", step).iter_unpack(covered))
    sums = _column("I", count).pack(*map(crc32c, rows))
    commit = (packet.commit & _LOW).to_bytes(6, "big")
    blank = b"".join((bytes(12), commit, rest, bytes(4)))
    data = bytearray(blank.join((b"", *payloads)))
    for at in range(6):
        data[at::size] = stamped[at + 2 :: 8]
        data[at + 6 :: size] = barriers[at + 2 :: 8]
    for at in range(4):
        data[at + 18 :: size] = numbered[at::4]
        data[at + 36 :: size] = sums[at::4]
    return data


@cache
def _column(kind: str, count: int) -> struct.Struct:
    """So many values of one kind behind each other, or one string of so many bytes."""
    return struct.Struct(f">{count}{kind}")


def _numbered(first: int, count: int) -> bytes:
    """The low 32 bits of numbers that follow each other, as packets hold them."""
    numbers: Iterable[int] = range(first, first + count)
    if first + count > _PSN_WRAP:
        numbers = [number & _PSN_LOW for number in numbers]
    return _column("I", count).pack(*numbers)


def checksum(data: bytes | bytearray) -> int:
    """Return the CRC-32C that a packet must hold: barriers, ECN and the CRC do not count."""
    stamp, rest, _ = _COVERED.unpack_from(data)
    return _checksum(stamp, rest, data[OVERHEAD_BYTES:])


def _checksum(stamp: bytes, rest: bytes, payload: bytes | bytearray) -> int:
    if rest[5] & ECN:
        rest = b"".join((rest[:5], bytes((rest[5] & _NOT_ECN,)), rest[6:]))
    found: int = crc32c(b"".join((stamp, rest, payload)))
    return found


def check(data: bytes | bytearray) -> None:
    """Raise PacketError unless this is a whole, undamaged packet with a known opcode."""
    if not OVERHEAD_BYTES <= len(data) <= PACKET_BYTES_MAX:
        raise PacketError(
            f"a packet of {len(data)} bytes: {OVERHEAD_BYTES} to {PACKET_BYTES_MAX} are allowed"
        )
    stamp, rest, found = _COVERED.unpack_from(data)
    payload = data[OVERHEAD_BYTES:]
    due = _checksum(stamp, rest, payload) if rest[5] & ECN else crc32c(stamp + rest + payload)
    if due != found:
        raise PacketError("the checksum of a packet is wrong: it was damaged on the way")
    if data[22] not in OPCODES:
        raise PacketError(f"opcode {data[22]} is unknown: its sender has a newer version")


def decode(data: bytes | bytearray, near: int) -> Packet:
    """Return the packet of these bytes, times unwrapped to be nearest to `near`.

    Raises PacketError as `check` does.
    """
    check(data)
    high, low, both, rest, psn, opcode, flags, source, to, epoch = _HEAD.unpack_from(data)
    away = _HALF - near  # as `unwrap` does
    return _packet((
        opcode, source, to,
        ((high << 32 | low) + away & _LOW) - away,
        ((both >> 16) + away & _LOW) - away,
        ((both << 32 | rest) + away & _LOW) - away,
        psn, flags, epoch, bytes(data[OVERHEAD_BYTES:]),
    ))  # fmt: skip


class Run(NamedTuple):
    """Whole messages of one sender and service in packets that follow each other."""

    opcode: int
    source: int
    to: int
    #: The low 32 bits of the first PSN; the others follow.
    psn: int
    stamps: Sequence[int]
    payloads: Sequence[bytes]
    #: The barriers of the last packet, which are the highest.
    barrier: int
    commit: int


def is_run(data: bytes | bytearray, size: int) -> bool:
    """Whether these packets of `size` bytes each are unmarked whole messages of one flow.

    The first is compared with the others; a damaged one may be among them.
    """
    count, rest = divmod(len(data), size)
    if rest or size < OVERHEAD_BYTES or data[22] not in (DATA_BE, DATA_R):
        return False
    if data[23] != WHOLE:
        return False
    # Opcode, flags, source, destination and epoch: each byte of all packets at once.
    return all(data[at::size] == data[at : at + 1] * count for at in range(22, 36))


def decode_run(data: bytes | bytearray, size: int, near: int) -> Run | None:
    """Return what several packets of `size` bytes hold, if all of it is undamaged and in order."""
    if not is_run(data, size):
        return None
    # By columns: each of these calls handles all packets, and none is made for one of them.
    covered, sums, payloads = _columns(data, size)
    if (*map(crc32c, covered),) != sums:
        return None
    count = len(payloads)
    psn, opcode, _, source, to, _ = _REST.unpack_from(data, 18)
    if psn + count > _PSN_WRAP or not _holds(data, size, 18, _numbered(psn, count), 4):
        return None
    stamps = _stamps(data, size, near)
    if stamps is None:
        return None
    barrier, commit = barriers_of(data[-size:], near)
    return Run(opcode, source, to, psn, stamps, payloads, barrier, commit)


def _columns(
    data: bytes | bytearray, size: int
) -> tuple[Iterable[bytes], tuple[int, ...], Sequence[bytes]]:
    """Return of all packets what checksums cover, the checksums, and the payloads."""
    rows = _run_struct(size - OVERHEAD_BYTES).iter_unpack(data)
    stamps, rests, sums, payloads = zip(*rows, strict=True)
    return map(b"".join, zip(stamps, rests, payloads, strict=True)), sums, payloads


def _stamps(data: bytes | bytearray, size: int, near: int) -> Sequence[int] | None:
    """Return the stamps of packets of `size` bytes each, unwrapped; None if they do not rise."""
    low, count = int.from_bytes(data[:6], "big"), len(data) // size
    first = unwrap(low, near)
    follow = _column("Q", count).pack(*range(low, low + count))
    if low + count <= _WRAP and _holds(data, size, 0, follow, 6):
        return range(first, first + count)  # as they are sent
    highs_and_lows = _stamp_struct(size).iter_unpack(data)
    stamps = [first - low + (high << 32 | rest) for high, rest in highs_and_lows]
    # Otherwise they were sent again, or have wrapped.
    return None if any(map(ge, stamps, stamps[1:])) else stamps


def _holds(data: bytes | bytearray, size: int, at: int, numbers: bytes, width: int) -> bool:
    """Whether packets of `size` bytes each hold these numbers at a place, each `width` bytes of it.

    `numbers` has one for each packet, in as many bytes each as `_column` gave it.
    """
    each = len(numbers) * size // len(data)
    # A byte of all packets at once: to read each number would take longer.
    return all(
        data[at + byte :: size] == numbers[each - width + byte :: each] for byte in range(width)
    )


@cache
def _run_struct(payload_bytes: int) -> struct.Struct:
    """Stamp, what else the checksum covers, the checksum, the payload."""
    return struct.Struct(f">6s12x18sI{payload_bytes}s")


@cache
def _stamp_struct(size: int) -> struct.Struct:
    """The stamp in two parts."""
    return struct.Struct(f">HI{size - 6}x")


def split(data: bytes | bytearray, size: int) -> Iterator[bytes | bytearray]:
    """Yield packets that came at once: each of `size` bytes, the last one perhaps shorter."""
    if len(data) <= size:
        return iter((data,))
    return (data[at : at + size] for at in range(0, len(data), size))


def barriers_of(data: bytes | bytearray, near: int) -> tuple[int, int]:
    """Return the two barriers of a packet, unwrapped: all that a switch reads of most packets."""
    both, rest = _BARRIERS.unpack_from(data, 6)
    away = _HALF - near  # as `unwrap` does, without two calls: each hop reads barriers
    return ((both >> 16) + away & _LOW) - away, ((both << 32 | rest) + away & _LOW) - away


def addresses_of(data: bytes | bytearray) -> tuple[int, int, int]:
    """Return source, destination and epoch of a packet, or of a run."""
    source, to, epoch = _ADDRESSES.unpack_from(data, 24)
    return source, to, epoch


def receiver_of(data: bytes | bytearray) -> int:
    """Return the destination process of a packet, or of a run."""
    return int.from_bytes(data[28:32], "big")


def is_of_processes(data: bytes | bytearray, size: int) -> bool:
    """Whether processes send such packets to each other: none is one that only switches send."""
    return _OF_SWITCHES.isdisjoint(data[22::size])


def rewrite(data: bytearray, barrier: int, commit: int) -> None:
    """Put other barriers into a packet. Its checksum does not cover them."""
    data[6:18] = ((barrier & _LOW) << 48 | commit & _LOW).to_bytes(12, "big")


def rewrite_run(data: bytearray, size: int, barrier: int, commit: int) -> None:
    """Put other barriers into several packets of `size` bytes each."""
    both = ((barrier & _LOW) << 48 | commit & _LOW).to_bytes(12, "big")
    count = len(data) // size
    for at, byte in enumerate(both, 6):
        data[at::size] = bytes((byte,)) * count


def mark(data: bytearray) -> None:
    """Tell the receiver of congestion. The checksum does not cover this flag."""
    data[23] |= ECN


def mark_run(data: bytearray, size: int, count: int) -> None:
    """Mark the last ones of several packets of `size` bytes each, whose flags are the same."""
    if count:
        data[len(data) - count * size + 23 :: size] = bytes((data[23] | ECN,)) * count


class Acknowledgement(NamedTuple):
    """The payload of an ACK: what the receiver has, and what its sender may send.

    Sequence numbers are those of one service of one flow. A receiver unwraps nothing here: the
    sender does, by `unwrap_psn`.
    """

    #: DATA_BE or DATA_R.
    service: int
    #: The sender may have so many bytes of parts that are not released.
    window: int
    #: All below were delivered or discarded: their bytes no longer count.
    released: int
    #: All below were received, or will never be accepted.
    through: int
    #: Packets since the last ACK, and how many of them were marked.
    packets: int = 0
    marked: int = 0
    #: What was received above `through`: pairs of a first number and a count.
    ranges: tuple[tuple[int, int], ...] = ()


_ACK = struct.Struct(">BIIIHHH")
_RANGE = struct.Struct(">II")
_FLOORS = struct.Struct(">QQ")
_U32 = struct.Struct(">I")
#: An ACK names so many ranges; what lies above is acknowledged by a later one.
RANGES_MAX = 64
_U16_MAX = (1 << 16) - 1


def encode_ack(ack: Acknowledgement) -> bytes:
    """Return the payload of an ACK; ranges beyond RANGES_MAX are left out."""
    ranges = ack.ranges[:RANGES_MAX]
    low = _PSN_LOW
    head = _ACK.pack(
        ack.service, ack.window, ack.released & low, ack.through & low,
        min(ack.packets, _U16_MAX), min(ack.marked, _U16_MAX), len(ranges),
    )  # fmt: skip
    if not ranges:
        return head
    return head + b"".join([_RANGE.pack(first & low, count) for first, count in ranges])


def decode_ack(payload: bytes) -> Acknowledgement:
    """Return what an ACK says. Raises PacketError for a payload of another shape."""
    if len(payload) < _ACK.size:
        raise PacketError(f"an ACK of {len(payload)} bytes is too short")
    service, window, released, through, packets, marked, count = _ACK.unpack_from(payload)
    if count > RANGES_MAX or len(payload) != _ACK.size + count * _RANGE.size:
        raise PacketError(f"an ACK of {len(payload)} bytes cannot hold {count} ranges")
    if service not in (DATA_BE, DATA_R):
        raise PacketError(f"an ACK of service {service}, which is none")
    ranges = tuple(_RANGE.iter_unpack(payload[_ACK.size :])) if count else ()
    return Acknowledgement(service, window, released, through, packets, marked, ranges)


def encode_floors(barrier: int, commit: int) -> bytes:
    """Return the payload of JOINED: the stamps of the new process must lie above both."""
    return _FLOORS.pack(barrier, commit)


def decode_floors(payload: bytes) -> tuple[int, int]:
    """Return the floors of a JOINED. Raises PacketError for a payload of another shape."""
    if len(payload) != _FLOORS.size:
        raise PacketError(f"a JOINED of {len(payload)} bytes: {_FLOORS.size} are due")
    barrier, commit = _FLOORS.unpack(payload)
    return barrier, commit


def encode_count(count: int) -> bytes:
    """Return the payload of CONNECT (a window in bytes) and of RECALL (a number of packets)."""
    return _U32.pack(count)


def decode_count(payload: bytes) -> int:
    """Return the number of a CONNECT or RECALL. Raises PacketError for another payload."""
    if len(payload) != _U32.size:
        raise PacketError(f"a payload of {len(payload)} bytes: {_U32.size} are due")
    (count,) = _U32.unpack(payload)
    return int(count)
