"""The load on a set that is upgraded, by clients of one release: `python -P load.py NAME URL`.

It is run by its path, with the packages of either release, so it imports only `weir` and uses only
what both have. It publishes to `flights`, reads that in total order, and takes part in two
clusters: `counted` acks, and `copied` publishes each message to `copies` and acks it, in one
scattering. Each line that it prints is a JSON object: how many it has published, received and acked
so far. After the line `stop` of its input it publishes no more; after `end COUNT` it ends once so
many messages were read, and its last line says what came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

import weir
from weir.errors import StaleGrant

#: So long a request is tried anew while nodes restart.
_REQUEST_S = 30.0
_PAUSE_S = 0.002
_TOLD_S = 0.1
_KEYS = 16


class Load:
    """What one process of clients does, and what came of it."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self.published = 0
        self.read: list[str] = []
        self.acked: list[str] = []
        self.copied = 0
        self.gap_s = 0.0
        self.stop = asyncio.Event()

    def so_far(self) -> dict[str, int]:
        return {
            "published": self.published,
            "read": len(self.read),
            "acked": len(self.acked),
            "copied": self.copied,
        }

    def came(self) -> dict[str, object]:
        return {"read": self.read, "acked": self.acked, "copied": self.copied}

    async def publish(self) -> None:
        async with weir.connect(self._url, request_timeout=_REQUEST_S) as client:
            while not self.stop.is_set():
                number = self.published
                value = f"{self._name} {number}"
                began = time.monotonic()
                await client.publish("flights", value, key=str(number % _KEYS))
                self.gap_s = max(self.gap_s, time.monotonic() - began)
                self.published += 1
                await asyncio.sleep(_PAUSE_S)

    async def follow(self) -> None:
        async with (
            weir.connect(self._url, request_timeout=_REQUEST_S) as client,
            client.reader("flights") as reader,
        ):
            async for message in reader:
                self.read.append(f"{message.partition} {message.offset} {text(message)}")

    async def count(self) -> None:
        async with (
            weir.connect(self._url, request_timeout=_REQUEST_S) as client,
            client.consumer("flights", cluster="counted") as consumer,
        ):
            async for batch in consumer.batches():
                messages = [*batch.messages()]
                result = await batch.ack(confirmed=True)
                # Messages whose lease had ended are done by their present holders.
                self.acked += [
                    text(one) for one in messages if result.of(one.offset).name == "DONE"
                ]

    async def copy(self) -> None:
        async with (
            weir.connect(self._url, request_timeout=_REQUEST_S) as client,
            client.consumer("flights", cluster="copied") as consumer,
        ):
            async for message in consumer:
                with contextlib.suppress(StaleGrant):  # another consumer copies it
                    async with client.scatter() as scattering:
                        scattering.publish("copies", bytes(message.value), key=text(message))
                        scattering.ack(message)
                    self.copied += 1

    async def tell(self) -> None:
        while True:
            print(json.dumps(self.so_far()), flush=True)
            await asyncio.sleep(_TOLD_S)


def text(message: Any) -> str:
    return bytes(message.value).decode()


async def main(name: str, url: str) -> None:
    """Load the set until the input says that it is enough. Raises what a client raised."""
    load = Load(name, url)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(load.publish())
        others = [
            group.create_task(one()) for one in (load.follow, load.count, load.copy, load.tell)
        ]
        await lines.readline()
        load.stop.set()
        await publishing
        print(json.dumps({"stopped": load.published}), flush=True)
        enough = int((await lines.readline()).split()[1])
        while len(load.read) < enough:
            await asyncio.sleep(_TOLD_S)
        await lines.readline()  # once the others need this one no more
        for one in others:
            one.cancel()
    print(json.dumps({**load.came(), "gap_s": load.gap_s}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
