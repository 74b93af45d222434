"""How an honest client fares beside hostile ones, and what an idle connection costs.

    python scripts/hostile_proof.py            # WEIR_HOSTILE=10000 idle connections, 50 attackers

Runs `weir serve`, publishes alone, then beside connections that say hello and nothing more, half
frames, frames that dribble in, garbage, and replies that nobody reads. Prints one JSON object: p50
and p99 of a publish in milliseconds, alone and beside them, and the node's memory for each idle
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import weir
from weir.protocol import device

IDLE = int(os.environ.get("WEIR_HOSTILE", "10000"))
ATTACKERS = 50
PUBLISHES = 2_000


def resident(pids: list[int]) -> int:
    """Return the resident bytes of processes, shared pages counted in each."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


async def honest(port: int) -> tuple[float, float]:
    """Publish one message after the other; return p50 and p99 in milliseconds."""
    times = []
    async with weir.connect(f"weir://127.0.0.1:{port}", request_timeout=60) as client:
        await client.create_topic("t")
        for _ in range(PUBLISHES):
            began = time.perf_counter()
            await client.publish("t", b"honest" * 4)
            times.append((time.perf_counter() - began) * 1_000)
    cuts = statistics.quantiles(times, n=100)
    return cuts[49], cuts[98]


def connect(port: int, hub: int) -> socket.socket:
    """Connect a device that says hello."""
    sock = socket.socket()
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    sock.sendall(device.hello(hub, 1, "t"))
    return sock


def attack(port: int, over: threading.Event) -> None:
    """Do harm until it is over, in turn: dribble, break off, babble, ask and never read."""
    dice = random.Random(1)
    drip = device.publish(1, bytes(60_000))
    held: list[socket.socket] = []
    while not over.wait(0.01):
        with contextlib.suppress(OSError):
            if len(held) < ATTACKERS:
                held.append(connect(port, 1 << 40 | len(held)))
            sock = dice.choice(held)
            sock.settimeout(0.01)
            match dice.randrange(4):
                case 0:
                    sock.sendall(drip[:1])
                case 1:
                    sock.sendall(b"\x01\xff\xff\xff\xff" + dice.randbytes(64))
                    held.remove(sock)
                    sock.close()
                case 2:
                    sock.sendall(dice.randbytes(512))
                case _:
                    sock.sendall(device.frame(device.DeviceOpcode.PING, 1, b"") * 500)
    for sock in held:
        sock.close()


def measure(port: int, pid: int) -> dict[str, float]:
    """Return the figures."""
    alone = asyncio.run(honest(port))
    before = resident(family(pid))
    idle = [connect(port, hub) for hub in range(IDLE)]
    for sock in idle:
        sock.recv(64)
    each = (resident(family(pid)) - before) / IDLE
    over = threading.Event()
    attacker = threading.Thread(target=attack, args=(port, over))
    attacker.start()
    beside = asyncio.run(honest(port))
    over.set()
    attacker.join()
    for sock in idle:
        sock.close()
    names = ("p50_alone_ms", "p99_alone_ms", "p50_beside_ms", "p99_beside_ms")
    figures = dict(zip(names, (round(n, 3) for n in (*alone, *beside)), strict=True))
    figures["p99_ratio"] = round(beside[1] / alone[1], 2)
    return figures | {"idle_connections": IDLE, "bytes_each": round(each)}


def main() -> None:
    """Run a node and print the figures."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "weir.cli", "serve", "--port", "0", "--data", folder)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
            try:
                assert node.stdout is not None
                found = re.search(r":(\d+)", node.stdout.readline())
                assert found
                print(json.dumps(measure(int(found[1]), node.pid)))
            finally:
                node.terminate()


if __name__ == "__main__":
    main()
