"""Two processes in one program: `python hello.py $SET`."""

from __future__ import annotations

import asyncio
import sys

import weir_toc
from weir_toc import Message


async def main(url: str) -> None:
    """Let a and b send to both of them at once; both print the messages in one order."""
    async with weir_toc.join(url, name="a") as a, weir_toc.join(url, name="b") as b:
        await a.wait_for("b")
        await b.wait_for("a")
        await asyncio.gather(
            a.send_reliable([("a", b"from a"), ("b", b"from a")]),
            b.send_reliable([("a", b"from b"), ("b", b"from b")]),
        )
        for me in (a, b):
            for _ in range(2):
                event = await anext(me.reliable)
                assert isinstance(event, Message)
                print(me.name, event.stamp, event.source, event.payload.decode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python hello.py toc://HOST:PORT[,HOST:PORT...]", file=sys.stderr)
        sys.exit(2)
    asyncio.run(main(sys.argv[1]))
