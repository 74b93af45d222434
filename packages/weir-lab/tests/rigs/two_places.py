"""Two places on an emulated network, as a process in a network namespace of its own.

It prints one JSON object: bytes that were echoed, whether anything came through a cut, and counts.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

from weir_lab.network.carriers import all_pairs
from weir_lab.network.emulated import EmulatedNetwork
from weir_lab.network.links import Link

_ECHO = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.bind((sys.argv[1], 7))
    print("up", flush=True)
    while True:
        data, at = one.recvfrom(2000)
        one.sendto(data, at)
"""
_PATIENCE_S = 10.0
_MOMENT_S = 0.2


def main() -> None:
    """Echo datagrams of one place in another one, with and without a cut."""
    pairs = all_pairs(["here", "there"], lambda one, other: Link(delay_ms=10))
    with EmulatedNetwork(["here", "there"], pairs) as network:
        at = network.address("there")
        words = [*network.before("there"), sys.executable, "-c", _ECHO, at]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as echo:
            assert echo.stdout is not None
            echo.stdout.readline()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.connect((at, 7))
                one.settimeout(_PATIENCE_S)
                began = time.monotonic()
                one.send(bytes(1_000))
                echoed = len(one.recv(2_000))
                took = time.monotonic() - began
                network.cut([("there", "here")])
                one.send(bytes(100))
                one.settimeout(_MOMENT_S)
                try:
                    came = bool(one.recv(2_000))
                except TimeoutError:
                    came = False
                network.rejoin("there")
                one.settimeout(_PATIENCE_S)
                one.send(bytes(10))
                echoed += len(one.recv(2_000))
            echo.kill()
        counts = network.counts()
        there, back = counts["here", "there"], counts["there", "here"]
    told = {"echoed": echoed, "took_s": took, "came": came}
    told |= {"there": [there.packets, there.bytes], "back": [back.packets, back.bytes, back.cut]}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
