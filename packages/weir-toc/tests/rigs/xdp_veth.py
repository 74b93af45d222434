"""A switch in the kernel between two hosts in namespaces of their own. Run it by `unshare -n`.

One host sends bursts by UDP_SEGMENT and changes its CPU between them; the other one prints what it
has received. The last line of the output is JSON.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable

from weir_toc import packet as wire
from weir_toc.errors import XdpError
from weir_toc.node import SwitchConfig
from weir_toc.packet import Packet
from weir_toc.topology import Topology, process_id, switch_id
from weir_toc.xdp import device
from weir_toc.xdp.node import NextHop, XdpNode
from weir_toc.xdp.path import GENERATOR, KernelPath

SWITCH = ("10.1.0.1", 7100)
A, B, SWITCH_ID = process_id(0, 1), process_id(0, 2), switch_id("rack-0")
NOW = 1_000_000_000_000_000
BURSTS, SEGMENTS, SIZE = 150, 30, 9
_ONE_QUEUE = ("numtxqueues", "1", "numrxqueues", "1")
_SOL_UDP, _UDP_SEGMENT = 17, 103


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def told() -> str:
    return sys.stdin.readline().strip()


def say(text: str) -> None:
    print(text, flush=True)


def host(number: int) -> socket.socket:
    """Take the device that the switch gives to this namespace; return a socket to the switch."""
    say("ready")
    told()
    ip("link", "set", "lo", "up")
    ip("link", "set", "eth0", "up")
    ip("addr", "add", f"10.0.0.{number}/32", "dev", "eth0")
    ip("route", "add", f"{SWITCH[0]}/32", "dev", "eth0")
    device.let_pass("eth0")
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    one.bind((f"10.0.0.{number}", 9000))
    one.connect(SWITCH)
    say("up")
    return one


def sender() -> None:
    one = host(1)
    told()
    cpus = sorted(os.sched_getaffinity(0))
    about = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", wire.OVERHEAD_BYTES + SIZE))]
    number = 0
    for burst in range(BURSTS):
        os.sched_setaffinity(0, {cpus[burst % len(cpus)]})
        data = b""
        for _ in range(SEGMENTS):
            stamp = NOW + 1_000 + number
            data += wire.encode(Packet(wire.DATA_BE, A, B, stamp, stamp, stamp - 1, number,
                                       epoch=1, payload=bytes(SIZE)))  # fmt: skip
            number += 1
        one.sendmsg([data], about)
        if burst % 4 == 3:
            time.sleep(0.002)  # a device holds 256 packets
    say("sent")


def receiver() -> None:
    one = host(2)
    told()
    one.send(wire.encode(Packet(wire.BEACON, B, barrier=NOW + 7, commit=NOW + 3, epoch=1)))
    say("beaconed")
    one.settimeout(1.0)
    numbers, other, beacons = [], 0, []
    try:
        while len(numbers) < BURSTS * SEGMENTS or beacons[-1:] != [[SWITCH_ID, 7]]:
            packet = wire.decode(one.recv(2_048), NOW)
            if packet.opcode == wire.BEACON:
                beacons.append([packet.source, packet.barrier - NOW])
                continue
            numbers.append(packet.psn)
            # The minimum over both processes is what this one has said.
            other += (packet.barrier, packet.commit) != (NOW + 7, NOW + 3)
    except TimeoutError:
        pass
    say(json.dumps({
        "received": len(numbers), "in_order": numbers == sorted(set(numbers)),
        "not_rewritten": other, "beacons": beacons,
    }))  # fmt: skip


def start(role: str) -> subprocess.Popen[str]:
    words = ["unshare", "-n", sys.executable, __file__, role]
    pipe = subprocess.PIPE
    found = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    heard(found, "ready")
    return found


def heard(one: subprocess.Popen[str], expected: str = "") -> str:
    assert one.stdout is not None
    line = one.stdout.readline().strip()
    if expected and line != expected:
        raise RuntimeError(f"{line!r} instead of {expected!r}")
    return line


def tell(one: subprocess.Popen[str]) -> None:
    assert one.stdin is not None
    one.stdin.write("go\n")
    one.stdin.flush()


def refusals(program: int) -> list[str]:
    """Why devices take no program that could not serve."""
    ip("link", "add", "two", "numrxqueues", "2", "numtxqueues", "2", "type", "veth", "peer",
       "name", "ends")  # fmt: skip
    found = []
    for name in ("lo", "two", "none"):
        try:
            os.close(device.attach(program, name))
        except XdpError as error:
            found.append(str(error))
    return found


def error_of(work: Callable[[], object]) -> str:
    try:
        work()
    except XdpError as error:
        return str(error)
    return ""


def switch() -> None:
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"{SWITCH[0]}/32", "dev", "lo")
    hosts = [start("sender"), start("receiver")]
    for number, (one, port) in enumerate(zip(hosts, ("pa", "pb"), strict=True), 1):
        ip("link", "add", port, *_ONE_QUEUE, "type", "veth", "peer", "name", "eth0", *_ONE_QUEUE,
           "netns", str(one.pid))  # fmt: skip
        ip("link", "set", port, "up")
        ip("route", "add", f"10.0.0.{number}/32", "dev", port, "src", SWITCH[0])
        tell(one)
        heard(one, "up")
    topology = Topology.tree(1)
    with KernelPath(SWITCH, ("pa", "pb"), min(os.sched_getaffinity(0))) as path:
        node = XdpNode(topology.switch_of_rack(0), topology, NOW, SwitchConfig(), path)
        for process, number in ((A, 1), (B, 2)):
            node.set_next_hop(NOW, process, _hop(number))
            node.receive(NOW, process, wire.encode(Packet(wire.JOIN, process, epoch=1)))
        path.settle()
        ip("link", "add", "free", *_ONE_QUEUE, "type", "veth", "peer", "name", "freed",
           *_ONE_QUEUE)  # fmt: skip
        taken = [error_of(KernelPath(SWITCH, ports, 0).__enter__) for ports in (("pa",), ("free",))]
        sending, receiving = hosts  # that they are served shows that nothing was taken
        tell(receiving)
        heard(receiving, "beaconed")
        until = time.monotonic() + 10
        while heard_by(node, B) == 0 and time.monotonic() < until:
            pass  # until the beacon has come
        tell(sending)
        heard(sending, "sent")
        node.tick(NOW + 1_000_000)
        found = json.loads(heard(receiving))
        found["counted"] = heard_by(node, A)
        found["refused"] = refusals(path.program)
        ip("link", "set", GENERATOR, "down")
        found["taken"] = taken
        found["broken"] = error_of(lambda: node.tick(NOW + 3_000_000))
    found["left"] = [name for _, name in socket.if_nameindex() if name.startswith("weir")]
    for one in hosts:
        one.wait(10)
    say(json.dumps(found))


def heard_by(node: XdpNode, process: int) -> int:
    return next(one.heard for one in node.read_links(NOW) if one.neighbour == process)


def _hop(number: int) -> NextHop:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = device.next_hop((f"10.0.0.{number}", 9000), ("pa", "pb"), device.Tables.read())
        if found is not None:
            return found
        time.sleep(0.01)
    raise RuntimeError(f"host {number} is not found")


if __name__ == "__main__":
    {"sender": sender, "receiver": receiver, "switch": switch}[sys.argv[1]]()
