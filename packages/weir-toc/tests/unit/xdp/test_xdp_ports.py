"""The program on real ports: order, bursts, senders that change CPU, and ports that are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rigs import xdp_veth
from rigs.xdp_path import needs_bpf
from weir_toc.errors import XdpError
from weir_toc.topology import switch_id
from weir_toc.xdp import __main__ as command
from weir_toc.xdp import device, kernel


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
    assert found["beacons"] == [[switch_id("rack-0"), 7]]
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
    assert kernel.read_object(whole).programs.keys() == {"enter", "forward", "pass"}
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


def test_pass_says_how_it_is_used(tmp_path: Path) -> None:
    assert command.main([]) == "usage: python -m weir_toc.xdp pass DEVICE..."
    assert "no device 'absent'" in str(command.main(["pass", "absent"]))
