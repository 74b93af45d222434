"""A process that says what it delivers: `recorder.py URL NAME`, JSON lines on its output."""

from __future__ import annotations

import asyncio
import json
import sys

import weir_toc


async def main(url: str, name: str) -> None:
    async with weir_toc.join(url, name=name) as me:
        print(json.dumps(["ready"]), flush=True)
        try:
            async for event in me.reliable:
                if isinstance(event, weir_toc.Message):
                    print(json.dumps(["got", event.payload.decode()]), flush=True)
                else:
                    print(json.dumps(["event", type(event).__name__]), flush=True)
        except weir_toc.Fenced as error:
            print(json.dumps(["words", str(error)]), flush=True)
            print(json.dumps(["fenced"]), flush=True)
            await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
