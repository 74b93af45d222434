"""Producer processes, as the process that leads them sees them."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

import msgspec

from weir.bench.children import environment, python
from weir.bench.produce import Done, Failed, Plan, Ready, Report
from weir.errors import WeirError

_report = msgspec.json.Decoder(Report)

R = TypeVar("R", Ready, Done)


class ProducersFailed(WeirError):
    """A producer process gave up or died; the message says why."""


class Producers:
    """Starts a process per plan; `async with` ends them all, whatever happens."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        """Take the plans; entering starts the processes."""
        self._plans = plans
        self._processes: list[Process] = []

    async def ready(self) -> list[Ready]:
        """Return when all producers are open."""
        return await self._all(Ready)

    def go(self) -> None:
        """Let them send."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")

    async def done(self) -> list[Done]:
        """Return when everything is confirmed."""
        return await self._all(Done)

    async def __aenter__(self) -> Producers:
        try:
            for plan in self._plans:
                await self._start(plan)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self, plan: Plan) -> None:
        process = await asyncio.create_subprocess_exec(
            *python("weir.bench.produce"),
            stdin=PIPE,
            stdout=PIPE,
            env=environment(),
            # Ctrl-C is for the process that leads, which then stops this one.
            start_new_session=True,
        )
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(plan) + b"\n")

    async def _all(self, kind: type[R]) -> list[R]:
        return list(await asyncio.gather(*(_next(process, kind) for process in self._processes)))

    async def _stop(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _next(process: Process, kind: type[R]) -> R:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise ProducersFailed(f"a producer process ended with code {await process.wait()}")
    report = _report.decode(line)
    if isinstance(report, Failed):
        raise ProducersFailed(f"a producer gave up: {report.error}")
    if not isinstance(report, kind):
        raise ProducersFailed(f"a producer process said {report!r} out of turn")
    return report
