"""The data path of a switch in test runs of the kernel, beside a switch in Python."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from weir_toc import packet as wire
from weir_toc.node import Effect, Send, SwitchConfig, SwitchNode
from weir_toc.topology import Topology
from weir_toc.xdp import kernel
from weir_toc.xdp import layout as at
from weir_toc.xdp.node import NextHop, XdpNode

#: Devices of tests: a test run comes by device 1, and each neighbour is behind that.
DEVICE = 1
DROP, PASS, REDIRECT = 1, 2, 4
OWN_IP, OWN_PORT = bytes((10, 0, 0, 1)), 7000
#: Where instructions read the index of a device in the context of a program.
_FROM_EGRESS, _FROM_INGRESS = struct.pack("<hi", 20, 0), struct.pack("<hi", 12, 0)
_MISSING = kernel.missing()

#: As root on a kernel with BPF nothing is missing: a refusal there is a failure.
needs_bpf = pytest.mark.skipif(
    bool(_MISSING) and (os.geteuid() != 0 or "no BPF_SYSCALL" in _MISSING),
    reason=f"no switch in the kernel: {_MISSING}",
)


class PathInTests:
    """`DataPath` by BPF_PROG_TEST_RUN: time stands still between two frames."""

    def __init__(self, loaded: kernel.Loaded) -> None:
        self.loaded = loaded
        self.words = memoryview(loaded.maps["states"].shared()).cast("Q")
        self.sent: list[bytes] = []
        self._number = 0
        self._named: set[int] = set()
        self._routed: set[int] = set()
        #: From where frames came, as the kernel notes who asked when.
        self._heard: set[int] = set()
        self.words[at.IP] = int.from_bytes(OWN_IP, "little")
        self.words[at.UDP_PORT] = int.from_bytes(OWN_PORT.to_bytes(2, "big"), "little")
        loaded.maps["outputs"].set(DEVICE, struct.pack("=Ii", DEVICE, 0))
        #: The slot that gets the beacons for all ports: of those behind one device only one does.
        self.leader: int | None = None

    def clear(self) -> None:
        """Forget all, for the next switch with these maps."""
        for number in range(at.WORDS):
            self.words[number] = 0
        for neighbour in [*self._named]:
            self.name(neighbour, None)
        for rack in self._routed:
            self.route(rack, 0, 0)
        for address in self._heard:
            with contextlib.suppress(OSError):  # only who joins is noted
                self.loaded.maps["asked"].delete(address)

    def execute(self, now: int, changes: Sequence[at.Change]) -> None:
        self._number += 1
        self.generate(at.command(self._number, now, changes))
        assert self.words[at.COMMAND] == self._number

    def repeat(self) -> None:
        """Send the last command once more, as a host that has waited for it: it counts once."""
        count = at.word(at.SLOTS - 1, at.QUEUE_BYTES)
        number = self._number + 1
        self.words[count] = 0
        self.execute(self.words[at.NOW], [at.Change(count, 5)])
        self.words[count] = 6
        self.generate(at.command(number, self.words[at.NOW], [at.Change(count, 5)]))
        assert self.words[count] == 6

    def ask_twice(self) -> None:
        """Send a join twice, as a host that floods the switch: only one comes to the process."""
        join = wire.encode(wire.Packet(wire.JOIN, 1, epoch=1))
        frame = at.frame(join, OWN_IP, OWN_PORT, bytes((10, 9, 9, 9)), 9_000)
        now = self.words[at.NOW]
        assert [self.run(now, frame, at.HOSTS).action for _ in range(2)] == [PASS, DROP]

    def settle(self) -> None:
        """All is done as soon as it is asked for."""

    def beacon(self, blanks: bytes | bytearray) -> None:
        for blank in wire.split(blanks, wire.OVERHEAD_BYTES):
            done = self.generate(bytearray(blank))
            if done.action == REDIRECT:
                self.sent += self.leave(done.frame)

    def leave(self, frame: bytes) -> list[bytes]:
        """Let a frame leave by the device; return it as it is then, or nothing if it is dropped.

        Of a beacon for all ports the copy of the leader of this device alone is there.
        """
        self.loaded.maps["ports"].set(DEVICE, at.port(at.HOSTS, self.leader))
        left = self.loaded.test("leave", frame)
        return [left.frame] if left.action == PASS else []

    def name(self, neighbour: int, slot: int | None) -> None:
        names = self.loaded.maps["neighbours"]
        if slot is None:
            names.delete(neighbour)
            self._named.discard(neighbour)
        else:
            self._named.add(neighbour)
            names.set(neighbour, struct.pack("=I", slot))

    def lead(self, ifindex: int, behind: int, leader: int | None) -> None:
        """All neighbours share the device: `run` says which one a frame comes from."""
        self.leader = leader

    def route(self, rack: int, down: int, up: int) -> None:
        self._routed.add(rack)
        self.loaded.maps["routes"].set(rack, struct.pack("=QQ", down, up))

    def run(self, now: int, frame: bytes, behind: int) -> kernel.TestRun:
        self.loaded.maps["ports"].set(DEVICE, at.port(behind, None))
        self._heard.add(int.from_bytes(frame[26:30], "little"))
        self.words[at.NOW] = now
        self.words[at.READ_AT] = (1 << 63) - 1  # no time has passed since
        return self.loaded.test("forward", frame)

    def generate(self, data: bytearray) -> kernel.TestRun:
        self.loaded.maps["ports"].set(DEVICE, at.port(at.GENERATOR, None))
        return self.loaded.test("forward", at.frame(data, OWN_IP, OWN_PORT))


def for_tests(found: kernel.ObjectFile) -> kernel.ObjectFile:
    """Let `leave` read the device by which a frame has come: a test run has no other one."""
    leave = found.programs["leave"]
    lines = [leave.code[n : n + 8] for n in range(0, len(leave.code), 8)]
    (line,) = (n for n, one in enumerate(lines) if one[:1] == b"\x61" and one[2:] == _FROM_EGRESS)
    lines[line] = lines[line][:2] + _FROM_INGRESS
    programs = {**found.programs, "leave": leave.__class__(b"".join(lines), leave.maps)}
    return found._replace(programs=programs)


def hop_of(neighbour: int) -> NextHop:
    """Where a neighbour is in these tests."""
    tail = neighbour.to_bytes(4, "big")
    return NextHop(DEVICE, b"\2\0" + tail, b"\2\1" + tail, bytes((10,)) + tail[1:], 9_000)


@dataclass
class Sent:
    """A packet, and the neighbour to which it goes."""

    to: int
    packet: bytes


class Twins:
    """One switch twice: in Python, and in the kernel. Both are given the same."""

    def __init__(self, loaded: kernel.Loaded, topology: Topology, switch: int, now: int,
                 config: SwitchConfig) -> None:  # fmt: skip
        self.path = PathInTests(loaded)
        self.switch = topology.switches[switch]
        self.node = SwitchNode(self.switch, topology, now, config)
        self.node.tick(now)  # as the data path: a half without inputs promises its own time
        self.xdp = XdpNode(self.switch, topology, now, config, self.path)
        for neighbour in (*self.switch.lower, *self.switch.upper):
            self.xdp.set_next_hop(now, neighbour, hop_of(neighbour))

    def receive(self, now: int, neighbour: int, data: bytes) -> tuple[list[Sent], list[Sent]]:
        """Give both a packet; return what each sends to where."""
        wanted = _sends(self.node.receive(now, neighbour, bytearray(data)))
        self.xdp.set_next_hop(now, neighbour, hop_of(neighbour))
        found: list[Sent] = []
        hop = hop_of(neighbour)
        frame = at.frame(data, OWN_IP, OWN_PORT, hop.ip, hop.port)
        if len(data) < wire.OVERHEAD_BYTES:  # it does not come so far
            assert self.path.loaded.test("enter", frame).action == PASS
            return wanted, _sends(self.xdp.receive(now, neighbour, bytearray(data)))
        ran = self.path.run(now, frame, self._behind(neighbour))
        if ran.action == REDIRECT:
            is_turned = ran.frame[12:14] == b"\0\0"
            left = [sent_in(one) for one in self.path.leave(ran.frame)]
            for one in left if is_turned else ():
                self.check_beacon(now, one)
            found += left
        elif ran.action == PASS:
            assert ran.frame[at.HEADER_BYTES :] == data
            found += _sends(self.xdp.receive(now, neighbour, bytearray(data)))
        else:
            assert ran.action == DROP
        return wanted, found

    def check_beacon(self, now: int, sent: Sent) -> None:
        """What leaves as a beacon is one of this switch, with its minima of now."""
        up, down = self.node.up, self.node.down
        if up.aggregate(now):
            down.raise_to(down.inputs[self.switch.id], up.barrier, up.commit, now)
        half = up if sent.to in self.switch.upper else down
        epoch = self.node._outputs[sent.to].epoch
        assert sent.packet == bytes(
            wire.encode_beacon(self.switch.id, epoch, half.barrier, half.commit))  # fmt: skip

    def receive_from_elsewhere(self, now: int, neighbour: int, data: bytes, is_near: bool) -> None:
        """Let a packet come by the port of a neighbour that the neighbour has not sent.

        If the sender `is_near`, its address differs by the UDP port alone, else by the IP address.
        A switch in Python hears only what comes from the addresses of its neighbours.
        """
        hop = hop_of(neighbour)
        ip, port = (hop.ip, hop.port + 1) if is_near else (bytes((10, 255, 0, 9)), hop.port)
        frame = at.frame(data, OWN_IP, OWN_PORT, ip, port)
        assert self.path.run(now, frame, self._behind(neighbour)).action in (DROP, PASS)

    def tick(self, now: int) -> tuple[list[Sent], list[Sent]]:
        """Let time pass for both; return the beacons of each."""
        wanted = _sends(self.node.tick(now))
        self.path.sent.clear()
        assert not _sends(self.xdp.tick(now))
        return wanted, [sent_in(frame) for frame in self.path.sent]

    def _behind(self, neighbour: int) -> int:
        ports = (*self.switch.lower, *self.switch.upper)
        return at.BEHIND + ports.index(neighbour) if neighbour in ports else at.HOSTS


def sent_in(frame: bytes) -> Sent:
    """Return the packet of a frame. Its addresses must be those of one neighbour."""
    to = int.from_bytes(frame[2:6], "big")
    hop = hop_of(to)
    assert (frame[:6], frame[6:12]) == (hop.mac, hop.own_mac)
    assert frame[26:34] == OWN_IP + hop.ip
    assert frame[34:38] == OWN_PORT.to_bytes(2, "big") + hop.port.to_bytes(2, "big")
    words = struct.unpack("!10H", frame[14:34])
    assert sum(words) % 0xFFFF == 0  # the sum of an IPv4 header
    assert frame[40:42] == b"\0\0"
    return Sent(to, frame[at.HEADER_BYTES :])


def _sends(effects: Sequence[Effect]) -> list[Sent]:
    return [Sent(one.to, bytes(one.data)) for one in effects if isinstance(one, Send)]


def without_beacons(sent: Sequence[Sent]) -> list[Sent]:
    """Beacons of moved minima come at other times: the host process looks for them."""
    return [one for one in sent if one.packet[22] != wire.BEACON]
