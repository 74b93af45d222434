"""The processes of the consumers: one that is killed is followed by another."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir_lab.bench.faults.killed.worker import Orders

_END_SECONDS = 60.0
#: A worker that handles nothing any more does not come to a commit to die behind.
_DIES_WITHIN_SECONDS = 5.0
#: One that was only just started dies of what it does not heed yet.
_KILLED = (-signal.SIGKILL, -signal.SIGUSR1)


class CrewFailed(WeirError):
    """A process ended by itself, or did not when it was told to."""


@dataclass(slots=True)
class _Seat:
    """A place for a process, its present process, and when that is killed if it does not die by
    itself.
    """

    orders: Orders
    process: subprocess.Popen[bytes] | None = None
    dies_at: float | None = None


class Crew:
    """So many processes with so many consumers each."""

    def __init__(self, orders: Orders, processes: int, folder: Path) -> None:
        """Take what the first is to do; consumers are numbered on."""
        self.kills = 0
        self._errors = folder / "handlers.txt"
        self._seats = [
            _Seat(msgspec.structs.replace(orders, first=number * orders.consumers))
            for number in range(processes)
        ]

    def fill(self) -> None:
        """Let all seats be taken. Raises `CrewFailed` if one ended that nobody killed."""
        for seat in self._seats:
            if seat.process is not None and seat.process.poll() is not None:
                code = seat.process.returncode
                if seat.dies_at is None or code not in _KILLED:
                    raise CrewFailed(f"a process ended with code {code}: {self._said()}")
                seat.process, seat.dies_at = None, None
                self.kills += 1
            if seat.process is None:
                seat.process = self._started(seat.orders)
            elif seat.dies_at is not None and time.monotonic() >= seat.dies_at:
                seat.process.kill()

    @property
    def dying(self) -> int:
        """How many are to die, and were not seen dead yet."""
        return sum(seat.dies_at is not None for seat in self._seats)

    def kill(self, number: int, behind_commit: bool) -> None:
        """Kill a process that is not to die yet, at once or behind its next commit."""
        living = [seat for seat in self._seats if seat.dies_at is None]
        seat = living[number % len(living)]
        assert seat.process is not None  # all are taken
        seat.process.send_signal(signal.SIGUSR1 if behind_commit else signal.SIGKILL)
        seat.dies_at = time.monotonic() + _DIES_WITHIN_SECONDS

    def stop(self) -> None:
        """Let all end by themselves. Raises `CrewFailed`."""
        for seat in self._seats:
            if seat.process is not None:
                seat.process.terminate()
        for seat in self._seats:
            if seat.process is None:
                continue
            try:
                code = seat.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                raise CrewFailed(f"a process does not end: {self._said()}") from None
            # One that was only just started dies of it.
            if code not in (0, -signal.SIGTERM):
                raise CrewFailed(f"a process ended with code {code}: {self._said()}")

    def end(self) -> None:
        """Kill all that still run."""
        for seat in self._seats:
            if seat.process is not None:
                seat.process.kill()
                seat.process.wait(_END_SECONDS)

    def _started(self, orders: Orders) -> subprocess.Popen[bytes]:
        words = python("weir_lab.bench.faults.killed.worker", msgspec.json.encode(orders).decode())
        with self._errors.open("ab") as errors:
            return subprocess.Popen(
                words, env=environment(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                # Ctrl-C is for the process that started them, which then ends them.
                start_new_session=True,
            )  # fmt: skip

    def _said(self) -> str:
        return self._errors.read_text(encoding="utf-8", errors="replace")[-2_000:]
