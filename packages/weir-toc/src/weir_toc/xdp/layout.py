"""The state of `switch.c` as 64-bit words, and the frames that its generator's port takes.

All of the state lies in one value of a map that is mapped into this process, so it is read without
a call. Words are changed by commands alone: the data path obeys one between two packets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from weir_toc import packet as wire
from weir_toc.places import XDP_NEIGHBOURS_MAX

#: Neighbours of one switch.
SLOTS = XDP_NEIGHBOURS_MAX

# Words of the state.
NOW, READ_AT, COMMAND, INTERVAL, DRAIN_RATE, MARK_ABOVE = range(6)
UP_BARRIER, UP_COMMIT, DOWN_BARRIER, DOWN_COMMIT = range(6, 10)
# Four words that the data path alone needs.
(IP, UDP_PORT, CPU, LIVE_SLOTS, PASSED_AT, DAMAGED, FENCED, UNROUTABLE,
 TURNED_AT) = range(14, 23)  # fmt: skip
#: As many words as times are kept at `TURNED_AT`: so many beacons are turned in an interval.
TURNS_PER_INTERVAL = 4
SOURCE = TURNED_AT + TURNS_PER_INTERVAL
# Six words that the data path alone needs.
FIRST_SLOT = SOURCE + 7

# Words of a slot.
(ID, FLAGS, EPOCH, BARRIER, COMMIT, HEARD_AT, PACKETS_IN, TOLD_BARRIER, TOLD_COMMIT,
 PACKETS_OUT, QUEUE_BYTES, QUEUE_AT, IFINDEX, MAC, OWN_MAC, NEIGHBOUR_IP, NEIGHBOUR_PORT,
 REFUSED_AT, BEACON) = range(19)  # fmt: skip
SLOT_WORDS = 19
WORDS = FIRST_SLOT + SLOTS * SLOT_WORDS

# Flags of a slot.
LOWER, LIVE, FROZEN, REMOVED, SWITCH = 1, 2, 4, 8, 16

# What lies behind a port.
HOSTS, GENERATOR, BEHIND = 1, 2, 16
#: The slot of a blank beacon that every port gets.
EVERY_PORT = (1 << 48) - 1

#: The processes of a rack are linked to this switch: in place of the slots that lead down to it.
HERE = (1 << 64) - 1

#: Not an opcode of the network: a frame of the generator's port that changes the state.
COMMAND_OPCODE = 0xC0
CHANGES_MAX = 64

_HEADERS = struct.Struct("!6s6sHBBHHHBBH4s4sHHHH")
_CHANGE = struct.Struct("=IIQ")
_PORT = struct.Struct("=II")
_NUMBER_AND_COUNT = struct.Struct("=QQ")
HEADER_BYTES = _HEADERS.size
_IPV4, _UDP = 0x0800, 17
_BARRIER_AT = 6
#: Where epoch and CRC of a beacon begin.
BEACON_AT = 32


class Change(NamedTuple):
    """A word of the state, and its new value."""

    word: int
    value: int
    #: Whether the word keeps its own value if that is higher.
    raises: bool = False


def word(slot: int, field: int) -> int:
    """Return the number of a word of a slot."""
    return FIRST_SLOT + slot * SLOT_WORDS + field


def frame(
    data: bytes | bytearray,
    to_ip: bytes,
    to_port: int,
    from_ip: bytes = bytes(4),
    from_port: int = 0,
) -> bytes:
    """Return a frame of Ethernet that carries a packet. Its sums and hardware addresses are 0."""
    length = 8 + len(data)
    return _HEADERS.pack(
        bytes(6), bytes(6), _IPV4, 0x45, 0, 20 + length, 0, 0, 64, _UDP, 0, from_ip, to_ip,
        from_port, to_port, length, 0,
    ) + data  # fmt: skip


def port(behind: int, leader: int | None) -> bytes:
    """Return what the data path knows of a port; without a leader no slot gets its beacons."""
    return _PORT.pack(behind, SLOTS if leader is None else leader)


def set_time(blanks: bytearray, now: int) -> None:
    """Set the time of blank beacons, which lie behind each other."""
    count = len(blanks) // wire.OVERHEAD_BYTES
    for place, byte in enumerate((now & (1 << 48) - 1).to_bytes(6, "big"), _BARRIER_AT):
        blanks[place :: wire.OVERHEAD_BYTES] = bytes((byte,)) * count


def command(number: int, now: int, changes: Sequence[Change]) -> bytearray:
    """Return the packet of a command, for the generator's port alone."""
    if len(changes) > CHANGES_MAX:
        raise ValueError(f"{len(changes)} changes: a command has at most {CHANGES_MAX}")
    data = wire.encode(wire.Packet(wire.BEACON, 0, barrier=now))
    data[22] = COMMAND_OPCODE
    data += _NUMBER_AND_COUNT.pack(number, len(changes))
    for one in changes:
        data += _CHANGE.pack(one.word, one.raises, one.value)
    return data
