"""The producer process of lone publishes: `python -m weir_lab.bench.lockstep.produce`, led over its
pipes.

It prepares all requests, and has a program in C send them, which it compiles first. So what a
client costs is the same, and little, for each broker.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from weir.errors import WeirError
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.harness.lockstep import OWN, LockstepPlan, compiler
from weir_lab.bench.harness.produce import Done
from weir_lab.bench.lockstep.script import Line, own_line, peer_line, pieces
from weir_lab.bench.sides.peers.peers import peer

SOURCE = Path(__file__).with_name("lockstep.c")
_HOST = "127.0.0.1"
_READ_BYTES = 1 << 16
_ASK_SECONDS = 30.0

R = TypeVar("R")


class LockstepFailed(WeirError):
    """The program could not be compiled, or a broker did not do what it asked for."""


def compiled(folder: Path) -> Path:
    """Compile the program into a folder. Raises `LockstepFailed`."""
    command = compiler()
    if command is None:
        raise LockstepFailed("there is no C compiler: install gcc")
    made = folder / "lockstep"
    run = subprocess.run(
        [command, "-O2", "-o", str(made), str(SOURCE)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise LockstepFailed(f"{SOURCE.name} was not compiled: {run.stderr[-500:]}")
    return made


async def produce(plan: LockstepPlan, orders: Orders) -> Done:
    """Prepare, open all connections, wait for the order, and send. Raises `LockstepFailed`."""
    with tempfile.TemporaryDirectory(prefix="weir-lockstep-") as folder:
        program, script = compiled(Path(folder)), Path(folder, "script")
        port, lines = _prepared(plan)
        with script.open("wb") as file:
            file.writelines(pieces(plan.dialect, lines))
        process = await asyncio.create_subprocess_exec(
            str(program), str(port), str(script), stdin=PIPE, stdout=PIPE
        )
        try:
            await _said(process, "ready")
            report(Ready())
            await orders.get()
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            async with asyncio.timeout(plan.timeout_s):
                first, last, confirmed, cpu = map(int, await _said(process, "done"))
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return Done(first, confirmed, 0, confirmed, cpu / 1e9, last)


async def _said(process: Process, word: str) -> list[str]:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode("utf-8", "replace").split()
    if not line or line[0] != word:
        raise LockstepFailed(" ".join(line) or "the program ended early")
    return line[1:]


def _prepared(plan: LockstepPlan) -> tuple[int, list[Line]]:
    """Return the port to connect to, and all connections."""
    if plan.side == OWN:
        with _asking(plan.port) as caller:
            return _own(plan, caller)
    (server,) = peer(plan.side)
    return plan.port, [
        peer_line(
            server.name, server.publishing(plan.topic, plan.size), producer, messages, plan.size
        )
        for producer, messages in plan.shares
    ]


class _Caller:
    """A connection on which one request after the other is answered."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._stream = ClientStream()
        self._correlation = 0

    def ask(self, request: m.Request, kind: type[R]) -> R:
        """Return the answer. Raises `LockstepFailed` if it is of another kind."""
        self._correlation += 1
        self._end.sendall(b"".join(encode_request(request, self._correlation)))
        while True:
            data = self._end.recv(_READ_BYTES)
            if not data:
                raise LockstepFailed("the node closed a connection")
            for frame in self._stream.receive(data):
                if frame.correlation == self._correlation:
                    reply = decode_reply(frame)
                    if not isinstance(reply, kind):
                        raise LockstepFailed(f"{type(request).__name__} was answered by {reply}")
                    return reply


@contextmanager
def _asking(port: int) -> Iterator[_Caller]:
    with socket.create_connection((_HOST, port), _ASK_SECONDS) as end:
        yield _Caller(end)


def _own(plan: LockstepPlan, caller: _Caller) -> tuple[int, list[Line]]:
    welcome = caller.ask(m.Hello("weir-bench"), m.Welcome)
    (address, *_) = caller.ask(a.DescribeTopic(plan.topic), m.TopicInfo).addresses
    lines = []
    for producer, messages in plan.shares:
        grant = caller.ask(m.OpenProducer(), m.ProducerGrant)
        lines.append(own_line(address, grant, producer, messages, plan.size))
    return welcome.ports[address.shard] if welcome.ports else plan.port, lines


if __name__ == "__main__":
    be_led(LockstepPlan, produce)
