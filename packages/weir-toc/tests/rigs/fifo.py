"""A sender that moves to another processor before each packet, a switch, and a receiver.

`fifo.py sender COUNT RECEIVER SWITCH` sends number N straight to the receiver, and then to the
switch. `fifo.py switch ADDRESS RECEIVER` sends each number that comes on to the receiver, as its
beacon. `fifo.py receiver COUNT ADDRESS` prints how many numbers of the sender it has read, and how
many beacons before what the sender had sent before. All addresses are HOST:PORT.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

NUMBER = struct.Struct(">cI")
DATA, BEACON = b"d", b"b"
#: `SO_RCVBUFFORCE`, and a buffer that holds all that can be sent here.
BUFFER_FORCE, BUFFER_BYTES = 33, 1 << 24
#: Without a packet for so long the receiver has got all that it gets.
SILENT_SECONDS = 5.0


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def send(count: int, receiver: tuple[str, int], switch: tuple[str, int]) -> None:
    processors = sorted(os.sched_getaffinity(0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for number in range(count):
            os.sched_setaffinity(0, {processors[2 * number % len(processors)]})
            one.sendto(NUMBER.pack(DATA, number), receiver)
            os.sched_setaffinity(0, {processors[(2 * number + 1) % len(processors)]})
            one.sendto(NUMBER.pack(BEACON, number), switch)


def pass_on(own: tuple[str, int], receiver: tuple[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, BUFFER_FORCE, BUFFER_BYTES)
        one.bind(own)
        print("ready", flush=True)
        while True:
            one.sendto(one.recv(64), receiver)


def receive(count: int, own: tuple[str, int]) -> None:
    highest, read, early = -1, 0, 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, BUFFER_FORCE, BUFFER_BYTES)
        one.bind(own)
        one.settimeout(SILENT_SECONDS)
        print("ready", flush=True)
        while True:
            kind, number = NUMBER.unpack(one.recv(64))
            if kind == BEACON:
                early += number > highest
                if number == count - 1:
                    break
            else:
                early += number < highest
                read += 1
                highest = max(highest, number)
    print(read, early, flush=True)


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    if role == "sender":
        send(int(words[0]), address_of(words[1]), address_of(words[2]))
    elif role == "switch":
        pass_on(address_of(words[0]), address_of(words[1]))
    else:
        receive(int(words[0]), address_of(words[1]))
