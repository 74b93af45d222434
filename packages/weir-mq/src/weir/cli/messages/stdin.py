"""Standard input without standing still: bytes as they come, whatever it is connected to."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator

_CHUNK_BYTES = 1 << 16
#: How many chunks are read ahead of whoever takes them.
_AHEAD = 4


async def chunks() -> AsyncIterator[bytes]:
    """Yield what stdin gives until it ends. Raises `OSError` as reading does.

    A thread of its own, because an event loop cannot wait for a plain file; a daemon that reads
    below Python's buffers, because nothing can wake it at Ctrl-C.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    slots = threading.Semaphore(_AHEAD)
    handle = sys.stdin.fileno()

    def read() -> None:
        got: bytes | OSError = b"-"
        while isinstance(got, bytes) and got:
            slots.acquire()
            try:
                got = os.read(handle, _CHUNK_BYTES)
            except OSError as error:
                got = error
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(queue.put_nowait, got)

    threading.Thread(target=read, name="weir-stdin", daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk
        slots.release()
