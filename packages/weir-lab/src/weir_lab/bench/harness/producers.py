"""Processes that are led over their pipes, as the process that leads them sees them."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir_lab.bench.harness.led import Failed, Ready
from weir_lab.bench.harness.produce import Done, Plan

R = TypeVar("R")
D = TypeVar("D")

#: A report may hold thousands of samples.
_LINE_BYTES_MAX = 1 << 26


class ProducersFailed(WeirError):
    """A producer process gave up or died; the message says why."""


class Crew(Generic[D]):
    """Runs a module of ours in a process per plan; `async with` ends all, whatever happens.

    Each reports `Ready`, then a `done` for every order it gets.
    """

    def __init__(self, module: str, plans: Sequence[msgspec.Struct], done: type[D]) -> None:
        """Take the plans; entering starts the processes."""
        self._module = module
        self.plans = plans
        self._done = done
        self._decoder = msgspec.json.Decoder(Ready | done | Failed)
        self._processes: list[Process] = []

    async def ready(self) -> list[Ready]:
        """Return when all of them are ready."""
        return await self._all(Ready)

    def go(self, order: bytes = b"go") -> None:
        """Give all of them an order: one line."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(order + b"\n")

    async def done(self) -> list[D]:
        """Return when all of them have done what they were told last."""
        return await self._all(self._done)

    @property
    def pids(self) -> list[int]:
        """The process ids."""
        return [process.pid for process in self._processes]

    async def __aenter__(self) -> Self:
        try:
            for plan in self.plans:
                await self._start(plan)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self, plan: msgspec.Struct) -> None:
        process = await asyncio.create_subprocess_exec(
            *python(self._module),
            stdin=PIPE,
            stdout=PIPE,
            env=environment(),
            limit=_LINE_BYTES_MAX,
            # Ctrl-C is for the process that leads, which then stops this one.
            start_new_session=True,
        )
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(plan) + b"\n")

    async def _all(self, kind: type[R]) -> list[R]:
        return list(await asyncio.gather(*(self._next(one, kind) for one in self._processes)))

    async def _stop(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _next(self, process: Process, kind: type[R]) -> R:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise ProducersFailed(f"a producer process ended with code {await process.wait()}")
        report: Any = self._decoder.decode(line)
        if isinstance(report, Failed):
            raise ProducersFailed(f"a producer gave up: {report.error}")
        if not isinstance(report, kind):
            raise ProducersFailed(f"a producer process said {report!r} out of turn")
        return report


class Producers(Crew[Done]):
    """Producer processes of weir: one order, one `Done`."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        """Take the plans; entering starts the processes."""
        super().__init__("weir_lab.bench.harness.produce", plans, Done)
