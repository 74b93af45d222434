"""The program on real ports: order, bursts, senders that change CPU, and ports that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rigs import xdp_veth
from rigs.xdp_path import needs_bpf
from weir_toc import packet as wire
from weir_toc.errors import XdpError
from weir_toc.hosts.frames import Address
from weir_toc.topology import switch_id
from weir_toc.xdp import __main__ as command
from weir_toc.xdp import aggregator, device, kernel
from weir_toc.xdp import layout as at
from weir_toc.xdp.aggregator import XdpAggregator
from weir_toc.xdp.node import NextHop
from weir_toc.xdp.path import KernelPath


@needs_bpf
def test_a_link_stays_in_order_and_all_of_a_burst_is_rewritten() -> None:
    """Bursts by UDP_SEGMENT cross a switch between namespaces; their sender changes its CPU."""
    words = ["unshare", "-n", sys.executable, xdp_veth.__file__, "switch"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["in_order"]
    assert found["not_rewritten"] == 0
    # A busy machine may lose some, as any network: those that came are enough to tell.
    assert 1_000 < found["received"] <= found["counted"]
    # The first one is what came from the receiver, turned: the sender has said nothing then.
    assert found["beacons"] == [[switch_id("rack-0"), barrier] for barrier in (0, 7)]
    native, queues, absent = found["refused"]
    assert "no native XDP" in native
    assert "2 queues" in queues
    assert "no device 'none'" in absent
    for device_name, refusal in zip(("pa", "weir-gen-in"), found["taken"], strict=True):
        assert f"device '{device_name}' takes no program: another program" in refusal
    assert "no beacon leaves by device 'weir-gen': Network is down" in found["broken"]
    assert found["left"] == []  # the generator's devices


def test_an_object_file_that_is_none_is_refused() -> None:
    whole = kernel.OBJECT.read_bytes()
    assert kernel.read_object(whole).programs.keys() == {"enter", "forward", "leave", "pass"}
    for spoiled in (b"", b"\x7fELF" + bytes(60), whole[:200], whole[:18] + b"\0\0" + whole[20:]):
        with pytest.raises(XdpError, match="object file"):
            kernel.read_object(spoiled)


def test_the_tables_of_the_kernel_are_read() -> None:
    routes = device.routes_in(
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
        "up0 00000000 0101000A 0003 0 0 0 00000000 0 0 0\n"
        "h0 0200000A 00000000 0005 0 0 0 FFFFFFFF 0 0 0\n"
    )
    assert routes == [
        device.Route("h0", 0x0A000002, 0xFFFFFFFF, 0),
        device.Route("up0", 0, 0, 0x0A000101),
    ]
    assert device.hardware_in(
        "IP address HW type Flags HW address Mask Device\n"
        "10.0.0.2 0x1 0x6 02:01:00:00:00:05 * h0\n"
        "10.0.0.3 0x1 0x0 00:00:00:00:00:00 * h0\n"
    ) == {("h0", "10.0.0.2"): bytes.fromhex("020100000005")}


class Frames:
    """A socket that notes what is sent; that of an old kernel takes no bursts."""

    def __init__(self, takes_bursts: bool) -> None:
        self.takes_bursts = takes_bursts
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        if data[1] and not self.takes_bursts:  # its kind of segments
            raise OSError(errno.EINVAL, "Invalid argument")
        self.sent.append(data)


@pytest.mark.parametrize(("takes_bursts", "sends"), [(True, 2), (False, 70)])
def test_blank_beacons_leave_as_bursts_or_one_by_one(
    monkeypatch: pytest.MonkeyPatch, takes_bursts: bool, sends: int
) -> None:
    blanks = [bytes(wire.encode_beacon(1, 1, 5, number)) for number in range(70)]
    path, frames = KernelPath(("10.1.0.1", 7100), (), 0), Frames(takes_bursts)
    monkeypatch.setattr(path, "_socket", frames, raising=False)
    path.beacon(b"".join(blanks))
    assert len(frames.sent) == sends
    head = 10 + at.HEADER_BYTES
    assert b"".join(one[head:] for one in frames.sent) == b"".join(blanks)
    for one in frames.sent:  # no burst has more segments than the kernel takes
        assert len(one) - head <= 64 * wire.OVERHEAD_BYTES
        assert bool(one[1]) is (len(one) - head > wire.OVERHEAD_BYTES)
        assert int.from_bytes(one[10 + 38 : 10 + 40], "big") == 8 + len(one) - head
    path.beacon(blanks[0])
    assert len(frames.sent) == sends + 1
    assert not any(frames.sent[-1][:10])


def test_neighbours_are_looked_for_only_when_the_tables_of_the_kernel_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """32 neighbours, each with the tables read anew, would keep the switch from its beacons."""
    tables = device.Tables((device.Route("pa", 0, 0, 0),), {})
    asked: list[str] = []
    hop = NextHop(1, bytes(6), bytes(6), bytes(4), 1)

    def found(address: Address, _: Sequence[str], seen: device.Tables) -> NextHop | None:
        asked.append(address[0])
        return hop if ("pa", address[0]) in seen.hardware else None

    monkeypatch.setattr(device, "next_hop", found)
    monkeypatch.setattr(device.Tables, "read", staticmethod(lambda: tables))
    one, addresses = device.Lookout(["pa"]), {1: ("a", 1), 2: ("b", 1)}
    assert one.look(addresses) == one.look(addresses) == {}
    assert not one.is_complete
    assert asked == ["a", "b"] * 2  # as long as one is missing
    tables = tables._replace(hardware={("pa", "a"): bytes(6), ("pa", "b"): bytes(6)})
    asked.clear()
    assert one.look(addresses) == {1: hop, 2: hop}
    assert one.look(addresses) == one.look(addresses) == {}
    assert one.is_complete
    assert asked == ["a", "b"]
    addresses[3] = ("b", 2)
    assert one.look(addresses) == {1: hop, 2: hop, 3: hop}
    tables = tables._replace(routes=())
    assert one.look(addresses) == {1: hop, 2: hop, 3: hop}


#: Says after each change of an empty namespace whether the kernel has told of it.
_CHANGES = """
import select, subprocess, sys
from weir_toc.xdp.device import TableChanges

with TableChanges() as changes:
    for line in (
        "sysctl -qw net.ipv6.conf.default.disable_ipv6=1",
        "ip link add pa type veth peer name pb",
        "ip link set pb up",
        "ip link set pa up",
        "ip addr add 10.3.0.1/24 dev pa",
        "true",
        "ip neigh add 10.3.0.9 lladdr 02:00:00:00:00:09 dev pa",
        "ip neigh del 10.3.0.9 dev pa",
        "ip route add 10.4.0.0/24 dev pa",
        "ip route del 10.4.0.0/24",
        "true",
        "for _ in $(seq 3000); do echo neigh replace 10.3.0.9 lladdr 02:00:00:00:00:08 dev pa; "
        "echo neigh del 10.3.0.9 dev pa; done | ip -batch -",
    ):
        subprocess.run(["sh", "-c", line], check=True)
        print(len(select.select([changes], [], [], 0)[0]), end=" ")
        changes.drain()
        assert not select.select([changes], [], [], 0)[0]
"""


@needs_bpf
def test_the_kernel_tells_of_changes_of_its_tables() -> None:
    """The last ones are more than there is room for."""
    words = ["unshare", "-n", sys.executable, "-c", _CHANGES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == [*"01111011110", "1"]


class Looks:
    """In place of a lookout, and of what the kernel tells: a pipe."""

    def __init__(self) -> None:
        self.is_complete = True
        self.count = 0
        self._read, self._write = os.pipe2(os.O_NONBLOCK)

    def look(self, addresses: object) -> dict[int, NextHop]:
        self.count += 1
        return {}

    def fileno(self) -> int:
        return self._read

    def change(self) -> None:
        os.write(self._write, b"x")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 100)


@needs_bpf
def test_a_switch_looks_for_neighbours_when_the_kernel_tells_of_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aggregator, "LOOK_SECONDS", 0.03)

    async def run() -> list[int]:
        one, looks = XdpAggregator([], switch_id("rack-0"), ("127.0.0.1", 0), []), Looks()
        monkeypatch.setattr(one, "_lookout", looks)
        monkeypatch.setattr(one, "_xdp", True)
        looking = asyncio.create_task(one.look(looks))  # type: ignore[arg-type]
        counts = []

        async def pass_by(seconds: float) -> None:
            before = looks.count
            await asyncio.sleep(seconds)
            counts.append(looks.count - before)

        await pass_by(0.3)
        for _ in range(5):
            looks.change()
        await pass_by(0.5)
        await pass_by(0.3)
        looks.is_complete = False
        looks.change()
        await pass_by(0.5)
        looks.is_complete = True
        await pass_by(0.1)
        await pass_by(0.3)
        looking.cancel()
        one.socket.close()
        return counts

    none, changed, after, missing, _, found = asyncio.run(run())
    assert (none, changed, after, found) == (0, 1, 0, 0)
    assert missing >= 3


def test_pass_says_how_it_is_used(tmp_path: Path) -> None:
    assert command.main([]) == "usage: python -m weir_toc.xdp pass DEVICE..."
    assert "no device 'absent'" in str(command.main(["pass", "absent"]))
