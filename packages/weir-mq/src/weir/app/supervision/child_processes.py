"""Child processes of `weir work`, as the operating system starts them."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence

from weir.server.processes.interpreter import environment


def starting(words: Sequence[str], output: int | None = None) -> Callable[[], Awaitable[Process]]:
    """Return what starts a process of this command, which ends when this one does, if it ends when
    its stdin does. Raises `OSError`.

    `output`: the file descriptor that its stdout goes to, if not to this one's.
    """

    async def start() -> Process:
        return await asyncio.create_subprocess_exec(
            *words,
            # The pipe closes when this process ends, however it does.
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            env=environment(),
            # Ctrl-C is for this process alone, which then tells the others.
            start_new_session=True,
        )

    return start
