"""The format of packets: golden bytes, checksums, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_toc import packet as wire
from weir_toc.errors import PacketError
from weir_toc.packet import Acknowledgement, Packet

PAGE = Path(__file__).parents[5] / "docs/PACKETS.md"
NEAR = 1 << 48

ACK = Acknowledgement(wire.DATA_R, 65_536, 3, 4, 9, 2, ((6, 2), (10, 1)))
GOLDEN = {
    "best effort, 7 to 65545, stamp 2^48 + 5, PSN 2^32 + 6, whole": Packet(
        wire.DATA_BE, 7, 65_545, NEAR + 5, NEAR + 5, NEAR + 4, (1 << 32) + 6,
        wire.BEGIN | wire.END, 2, b"hi",
    ),
    "beacon of process 7": Packet(
        wire.BEACON, 7, barrier=NEAR + (1 << 40), commit=NEAR - 16, epoch=1
    ),
    "ACK of process 9": Packet(
        wire.ACK, 9, 7, barrier=NEAR, commit=NEAR, flags=wire.CONFIRM, epoch=1,
        payload=wire.encode_ack(ACK),
    ),
    "recall": Packet(wire.RECALL, 7, 9, NEAR + 1, NEAR + 2, NEAR, 5, 0, 1, wire.encode_count(3)),
    "connect": Packet(wire.CONNECT, 7, 9, epoch=1, payload=wire.encode_count(65_536)),
    "joined": Packet(
        wire.JOINED, 1 << 31, 7, barrier=NEAR, commit=NEAR, epoch=1,
        payload=wire.encode_floors(NEAR + 3, NEAR + 1),
    ),
}  # fmt: skip


def on_the_page() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8").split("| packet | bytes |", 1)[1]
    return dict(re.findall(r"^\| (.+?) \| `([0-9a-f]+)` \|$", text, re.MULTILINE))


def test_the_page_holds_the_bytes_of_each_golden_packet() -> None:
    assert on_the_page() == {name: wire.encode(one).hex() for name, one in GOLDEN.items()}


def test_golden_bytes_are_decoded() -> None:
    for name, text in on_the_page().items():
        expected = GOLDEN[name]
        found = wire.decode(bytes.fromhex(text), NEAR)
        psn = expected.psn & 0xFFFF_FFFF
        assert found._replace(stamp=0, barrier=0, commit=0) == expected._replace(
            psn=psn, stamp=0, barrier=0, commit=0
        )
        if expected.stamp:
            assert (found.stamp, found.barrier) == (expected.stamp, expected.barrier)


def test_header_and_envelope_have_their_sizes() -> None:
    assert wire.HEADER_BYTES == 24
    assert len(wire.encode(Packet(wire.BEACON, 1))) == 40


@given(
    st.builds(
        Packet,
        st.sampled_from(sorted(wire.OPCODES)),
        st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1),
        *[st.integers(NEAR - (1 << 46), NEAR + (1 << 46))] * 3,
        st.integers(0, (1 << 32) - 1), st.integers(0, 255), st.integers(0, (1 << 32) - 1),
        st.binary(max_size=64),
    )
)  # fmt: skip
def test_what_is_encoded_is_decoded(packet: Packet) -> None:
    assert wire.decode(wire.encode(packet), NEAR) == packet


@given(st.binary(max_size=40), st.integers(0, 79 * 8))
def test_a_flipped_bit_is_found_unless_switches_may_write_it(payload: bytes, bit: int) -> None:
    data = wire.encode(Packet(wire.DATA_R, 1, 2, 3, 4, 5, 6, 0, 7, payload))
    at = bit // 8 % len(data)
    data[at] ^= 1 << bit % 8
    may_write = 6 <= at < 18 or (at == 23 and 1 << bit % 8 == wire.ECN)
    if may_write:
        wire.check(data)
    else:
        with pytest.raises(PacketError):
            wire.check(data)


def test_a_switch_writes_barriers_and_marks_without_a_checksum() -> None:
    data = wire.encode(Packet(wire.DATA_BE, 1, 2, NEAR, NEAR, NEAR, payload=b"x"))
    wire.rewrite(data, NEAR - 7, NEAR - 9)
    wire.mark(data)
    found = wire.decode(data, NEAR)
    assert (found.barrier, found.commit, found.flags) == (NEAR - 7, NEAR - 9, wire.ECN)
    assert wire.barriers_of(data, NEAR) == (NEAR - 7, NEAR - 9)


def test_beacons_are_the_bytes_of_their_packets_and_share_no_memory() -> None:
    for source, epoch, barrier in ((7, 1, NEAR), (7, 2, NEAR + 1), (1 << 31, 1, NEAR + 2)):
        packet = Packet(wire.BEACON, source, barrier=barrier, commit=NEAR - 5, epoch=epoch)
        made = wire.encode_beacon(source, epoch, barrier, NEAR - 5)
        assert made == wire.encode(packet)
        wire.mark(made)  # what a switch does with it changes no later one
        wire.rewrite(made, 1, 1)
        assert wire.encode_beacon(source, epoch, barrier, NEAR - 5) == wire.encode(packet)


def test_a_marked_packet_has_the_checksum_of_an_unmarked_one() -> None:
    packet = Packet(wire.DATA_R, 1, 2, psn=1 << 33, payload=b"x", flags=wire.BEGIN | wire.END)
    plain, marked = wire.encode(packet), wire.encode(packet._replace(flags=packet.flags | wire.ECN))
    assert plain[36:40] == marked[36:40] == wire.checksum(marked).to_bytes(4, "big")
    wire.mark(plain)
    assert plain == marked


@given(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 48) - 1), st.integers(0, 1 << 50))
def test_barriers_are_unwrapped_as_other_times_are(barrier: int, commit: int, near: int) -> None:
    data = wire.encode_beacon(1, 1, barrier, commit)
    assert wire.barriers_of(data, near) == (wire.unwrap(barrier, near), wire.unwrap(commit, near))


@pytest.mark.parametrize("size", [0, 39, wire.PACKET_BYTES_MAX + 1])
def test_packets_of_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(PacketError, match="are allowed"):
        wire.decode(bytes(size), NEAR)


def test_an_unknown_opcode_is_refused() -> None:
    with pytest.raises(PacketError, match="opcode 200"):
        wire.decode(wire.encode(Packet(200, 1)), NEAR)


@given(st.integers(-(1 << 46), 1 << 46), st.integers(0, 1 << 60))
def test_unwrapping_finds_the_time_near_another(distance: int, near: int) -> None:
    time = near + distance
    assert wire.unwrap(time & ((1 << 48) - 1), near) == time
    assert wire.unwrap_psn((near + distance % 1000) & 0xFFFF_FFFF, near) == near + distance % 1000


@pytest.mark.parametrize(
    "payload",
    [b"", wire.encode_ack(ACK)[:-1], wire.encode_ack(ACK) + b"x",
     b"\x09" + wire.encode_ack(ACK)[1:]],
)  # fmt: skip
def test_acks_of_another_shape_are_refused(payload: bytes) -> None:
    with pytest.raises(PacketError):
        wire.decode_ack(payload)


def test_an_ack_names_a_limited_number_of_ranges() -> None:
    many = ACK._replace(ranges=tuple((10 * one, 1) for one in range(200)))
    found = wire.decode_ack(wire.encode_ack(many))
    assert found.ranges == many.ranges[: wire.RANGES_MAX]


def test_counts_and_floors_of_another_shape_are_refused() -> None:
    with pytest.raises(PacketError):
        wire.decode_count(b"12345")
    with pytest.raises(PacketError):
        wire.decode_floors(b"1234")
    assert wire.decode_floors(wire.encode_floors(5, 6)) == (5, 6)
