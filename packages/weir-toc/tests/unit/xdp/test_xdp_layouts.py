"""What three languages say of packets and of the state of a switch is the same."""

from __future__ import annotations

import re

import pytest

from weir_toc import packet as wire
from weir_toc.congestion import RATE_SHIFT
from weir_toc.places import XDP_NEIGHBOURS_MAX
from weir_toc.xdp import kernel
from weir_toc.xdp import layout as at

C = kernel.OBJECT.with_name("switch.c").read_text()
P4 = kernel.OBJECT.with_name("switch.p4").read_text()

#: Fields of a packet: their names, and where they begin.
FIELDS = {"stamp": 0, "barrier": 6, "commit": 12, "psn": 18, "opcode": 22, "flags": 23,
          "source": 24, "to": 28, "epoch": 32, "crc": 36}  # fmt: skip
OPCODES = ("DATA_BE", "DATA_R", "ACK", "NAK", "BEACON", "RECALL", "RECALL_ACK", "CONNECT", "JOIN",
           "JOINED", "FENCED")  # fmt: skip
FLAGS = ("END", "ECN", "BEGIN", "CONFIRM")


def braces_of(text: str, head: str) -> str:
    """Return what stands in the braces behind a head."""
    found = re.search(re.escape(head) + r" \{\n(.*?)\n\}", text, re.DOTALL)
    assert found is not None
    return found[1]


def offsets_of(fields: list[tuple[str, int]]) -> dict[str, int]:
    """Return where each field begins, from their sizes in bytes."""
    found, end = {}, 0
    for name, size in fields:
        found[name] = end
        end += size
    assert end == wire.OVERHEAD_BYTES
    return found


def test_the_layout_of_a_packet_is_the_same_in_p4() -> None:
    fields = re.findall(r"bit<(\d+)> (\w+);", braces_of(P4, "header toc_t"))
    assert offsets_of([(name, int(bits) // 8) for bits, name in fields]) == FIELDS


def test_the_layout_of_a_packet_is_the_same_in_c() -> None:
    fields = re.findall(r"__u8 (\w+)(?:\[(\d+)\])?;", braces_of(C, "struct toc"))
    assert offsets_of([(name, int(size or 1)) for name, size in fields]) == FIELDS


def test_the_layout_is_that_of_what_is_encoded() -> None:
    values = {"stamp": 0x010203040506, "barrier": 0x111213141516, "commit": 0x212223242526,
              "psn": 0x31323334, "opcode": 5, "flags": 4, "source": 0x41424344,
              "to": 0x51525354, "epoch": 0x61626364}  # fmt: skip
    data = wire.encode(wire.Packet(**values))
    ends = [*FIELDS.values()][1:]
    for (name, begin), end in zip(FIELDS.items(), ends, strict=False):
        assert int.from_bytes(data[begin:end], "big") == values[name]


@pytest.mark.parametrize("name", OPCODES + FLAGS + ("NEIGHBOUR",))
def test_opcodes_and_flags_are_the_same_in_p4(name: str) -> None:
    (value,) = re.findall(rf"^const bit<\d+> {name} = (\d+);$", P4, re.MULTILINE)
    assert int(value) == getattr(wire, name)


def test_p4_knows_all_opcodes_and_says_that_it_has_not_run() -> None:
    assert {getattr(wire, name) for name in OPCODES} == wire.OPCODES
    assert "NOT RUN" in P4


def test_numbers_of_the_program_are_those_of_python() -> None:
    numbers = dict(re.findall(r"^#define (\w+) (\w+?)(?:ULL)?$", C, re.MULTILINE))
    wanted = {
        "PACKET_BYTES_MAX": wire.PACKET_BYTES_MAX, "DATA_BE": wire.DATA_BE, "BEACON": wire.BEACON,
        "JOIN": wire.JOIN, "FENCED": wire.FENCED, "FLAG_ECN": wire.ECN,
        "NEIGHBOUR": wire.NEIGHBOUR, "COMMAND": at.COMMAND_OPCODE, "RATE_SHIFT": RATE_SHIFT,
        "SLOTS": XDP_NEIGHBOURS_MAX, "LOWER": at.LOWER, "LIVE": at.LIVE, "FROZEN": at.FROZEN,
        "REMOVED": at.REMOVED, "SWITCH": at.SWITCH, "HOSTS": at.HOSTS, "GENERATOR": at.GENERATOR,
        "BEHIND": at.BEHIND, "CHANGES_MAX": at.CHANGES_MAX, "EVERY_PORT": at.EVERY_PORT,
        "TURNS_PER_INTERVAL": at.TURNS_PER_INTERVAL,
    }  # fmt: skip
    assert {name: int(numbers[name], 0) for name in wanted} == wanted


def test_words_of_a_slot_and_of_the_state_have_the_order_of_the_program() -> None:
    slot = re.findall(r"__u64 (\w+);", braces_of(C, "struct slot"))
    names = ("ID", "FLAGS", "EPOCH", "BARRIER", "COMMIT", "HEARD_AT", "PACKETS_IN",
             "TOLD_BARRIER", "TOLD_COMMIT", "PACKETS_OUT", "QUEUE_BYTES", "QUEUE_AT", "IFINDEX",
             "MAC", "OWN_MAC", "NEIGHBOUR_IP", "NEIGHBOUR_PORT", "REFUSED_AT",
             "BEACON")  # fmt: skip
    assert [getattr(at, name) for name in names] == [*range(len(slot))]
    assert len(slot) == at.SLOT_WORDS
    assert slot[:15] == [name.lower() for name in names[:15]]
    state, words = {}, 0
    counts = {"": 1, "TURNS_PER_INTERVAL": at.TURNS_PER_INTERVAL, "SLOTS": at.SLOTS}
    sizes = {"__u64": 1, "struct half": 2, "struct slot": at.SLOT_WORDS}
    for kind, name, count in re.findall(r"(__u64|struct half|struct slot) (\w+)(?:\[(\w+)\])?;",
            braces_of(C, "struct state")):  # fmt: skip
        state[name] = words
        words += sizes[kind] * counts[count]
    assert words == at.WORDS
    assert (state["up"], state["down"]) == (at.UP_BARRIER, at.DOWN_BARRIER)
    assert {name: state[name] for name in ("now", "read_at", "command", "interval", "drain_rate",
            "mark_above", "ip", "udp_port", "cpu", "live", "passed_at", "damaged", "fenced",
            "unroutable", "turned_at", "source", "slots")} == {
        "now": at.NOW, "read_at": at.READ_AT, "command": at.COMMAND, "interval": at.INTERVAL,
        "drain_rate": at.DRAIN_RATE, "mark_above": at.MARK_ABOVE, "ip": at.IP,
        "udp_port": at.UDP_PORT, "cpu": at.CPU, "live": at.LIVE_SLOTS, "passed_at": at.PASSED_AT,
        "damaged": at.DAMAGED, "fenced": at.FENCED, "unroutable": at.UNROUTABLE,
        "turned_at": at.TURNED_AT, "source": at.SOURCE,
        "slots": at.FIRST_SLOT,
    }  # fmt: skip
