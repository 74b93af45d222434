"""A server that speaks as much RESP2 as weir's benchmarks use, for a machine without Redis.

FAKE_LOSES=n: the n-th message is confirmed and never delivered, to see that a check notices.
FAKE_REPEATS=n: it is delivered in the place of its successor, too. FAKE_FORGETS=1: acks are counted
as none.
FAKE_REFUSES=1: every XADD is answered with an error; a file's name: until that is gone, and the
server that finds it removes it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path


class Stream:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        #: How many the one group of each stream was given.
        self.given = 0
        self.changed = asyncio.Condition()


streams: dict[bytes, Stream] = {}
loses = int(os.environ.get("FAKE_LOSES", "-1"))
repeats = int(os.environ.get("FAKE_REPEATS", "-1"))
forgets = "FAKE_FORGETS" in os.environ
refuses = (told := os.environ.get("FAKE_REFUSES", "")) == "1" or Path(told).is_file()


async def read_command(reader: asyncio.StreamReader) -> list[bytes]:
    count = int((await reader.readline())[1:])
    words = []
    for _ in range(count):
        size = int((await reader.readline())[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words


async def added(words: list[bytes]) -> bytes:
    if refuses:
        return b"-OOM command not allowed\r\n"
    stream = streams[words[1]]
    async with stream.changed:
        stream.values.append(words[4])
        stream.changed.notify_all()
    number = b"%d-0" % len(stream.values)
    return b"$%d\r\n%b\r\n" % (len(number), number)


async def taken(words: list[bytes]) -> bytes:
    name = words[-2]
    stream = streams[name]
    async with stream.changed:
        await stream.changed.wait_for(lambda: len(stream.values) > stream.given)
    first, most = stream.given, int(words[words.index(b"COUNT") + 1])
    stream.given = min(len(stream.values), first + most)
    numbers = [n - (n == repeats + 1 > 0) for n in range(first, stream.given) if n != loses]
    reply = b"*1\r\n*2\r\n$%d\r\n%b\r\n*%d\r\n" % (len(name), name, len(numbers))
    for n in numbers:
        number, value = b"%d-0" % n, stream.values[n]
        reply += b"*2\r\n$%d\r\n%b\r\n*2\r\n$1\r\nd\r\n" % (len(number), number)
        reply += b"$%d\r\n%b\r\n" % (len(value), value)
    return reply


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            words = await read_command(reader)
            if words[0] == b"XGROUP":
                streams[words[2]] = Stream()
                writer.write(b"+OK\r\n")
            elif words[0] == b"PING":
                writer.write(b"+PONG\r\n")
            elif words[0] == b"XADD":
                writer.write(await added(words))
            elif words[0] == b"XACK":
                writer.write(b":%d\r\n" % (0 if forgets else len(words) - 3))
            else:
                writer.write(await taken(words))
    except (ValueError, asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    if refuses and told != "1":
        Path(told).unlink()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    if "--version" in sys.argv:
        print("Redis server v=0.0.1 sha=fake")
    else:
        asyncio.run(main())
