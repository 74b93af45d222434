"""Whether the alarm names what lags, and when, and that it is silent in a quiet network.

Processes on two racks below a spine send both services to each other. First nothing is wrong for a
while, and any alarm is false. Then one link at a time lags by about seven intervals, for each cause
that the alarm can tell: the clock of a process falls behind, a process or an aggregator is stopped
by SIGSTOP for seven of nine intervals, packets of a link wait, or only few of them pass. A round is
measured from the beginning of that to the line of the controller that names the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.toc.crew import PATIENCE_SECONDS, Crew, CrewFailed, Shape, crew
from weir_lab.bench.toc.limits.alarm_worker import LAG_INTERVALS, ProcessOrders, SwitchOrders
from weir_toc.hosts.frames import addresses_of, ask_once
from weir_toc.topology import switch_id

_RACKS, _SPINE, _CONTROLLER = 2, "spine-0", "controller-1"
#: What a process suffers, and what a switch can: its own clock makes no barrier.
OF_PROCESSES = ("clock", "stopped process", "queue", "loss")
OF_SWITCHES = OF_PROCESSES[1:]
#: In intervals: how long a stopped process runs in between, how long an alarm is waited for, how
#: long others may follow it, and after how long without one a network is well.
_RUNS, _PATIENCE, _FOLLOWING, _WELL = 2, 150, 15, 40
#: A round in which the link is taken for dead says nothing of the alarm: it is done again.
_TRIES = 3
_LOOK_SECONDS = 0.002
_EXAMPLES_MAX = 20
Progress = Callable[[int], None]


class AlarmSettings(msgspec.Struct, frozen=True):
    """So many rounds of each cause at a process and a switch, and how long all is well before."""

    rounds: int = 3
    quiet_seconds: float = 600.0
    causes: tuple[str, ...] = OF_PROCESSES
    processes: int = 8
    interval_ms: float = 20.0
    #: Seconds between the scatterings of a process, which go to all.
    pause_s: float = 0.2
    seed: int = 1
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(rounds=(self.rounds, 0, 1_000), processes=(self.processes, 2 * _RACKS, 50))
        if self.quiet_seconds < 0 or self.pause_s <= 0 or not 1 <= self.interval_ms <= 1_000:
            raise ValueError("quiet_seconds: 0 or more; pause_s: above 0; interval_ms: 1 to 1000")
        if not self.causes or not {*self.causes} <= {*OF_PROCESSES}:
            raise ValueError(f"causes: some of {', '.join(OF_PROCESSES)}")

    def plan(self, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield the cause of each round and the link that lags, by the names of both ends."""
        for number in range(self.rounds):
            rack = f"rack-{number % _RACKS}"
            for link, possible in (
                ([names[number % len(names)], rack], OF_PROCESSES),
                ([rack, _SPINE], OF_SWITCHES),
            ):
                yield from ((cause, link) for cause in possible if cause in self.causes)


class AlarmRound(msgspec.Struct, frozen=True):
    """One link that lagged, and what the controller said of it."""

    cause: str
    link: list[str]
    #: In intervals, from the beginning of the lag; None if it was not named.
    named_t: float | None
    #: Alarms of these intervals with another hop or cause, or of a link that does not lag.
    wrong: int
    told: list[str]


class AlarmResult(msgspec.Struct, frozen=True):
    """What the alarm named."""

    rounds: int
    #: Rounds in which the link was not named with its hop and cause.
    unnamed: int
    named_t_max: float
    named_t_median: float
    #: By cause, the longest time in intervals.
    causes: dict[str, float]
    wrong: int
    quiet_seconds: float
    false_alarms: int
    #: Alarms that the controller counts beside those that it has told of.
    uncounted: int
    #: Processes that were taken for dead: in rounds that were done again, and while all was well.
    removed: int
    removed_in_quiet: int
    seconds: float
    examples: list[str]
    each: list[AlarmRound]

    @property
    def clean(self) -> bool:
        """Whether each link was named, and nothing else."""
        return not (self.unnamed or self.wrong or self.false_alarms or self.uncounted)


class Alarms:
    """The alarms of a controller that prints them as JSON, in the order in which they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        #: All that have begun, and the links that lag now.
        self.begun: list[Mapping[str, Any]] = []
        self.lagging: set[tuple[str, ...]] = set()
        self.last_at = time.monotonic()

    def read(self) -> None:
        """Take the whole lines that have come."""
        with self._path.open("rb") as output:
            output.seek(self._offset)
            whole, newline, _ = output.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            self.take(json.loads(line))

    def take(self, found: Mapping[str, Any]) -> None:
        """Take one line."""
        if found["event"] != "lagging":
            return
        self.last_at = time.monotonic()
        if found["over"]:
            self.lagging.discard((*found["link"],))
        else:
            self.lagging.add((*found["link"],))
            self.begun.append(found)


def is_right(found: Mapping[str, Any], cause: str, link: Sequence[str]) -> bool:
    """Whether an alarm is of a link that lags, and of one above it because of that link."""
    above = [link[1], _SPINE]
    return found["hop"] == link and found["cause"] == cause and found["link"] in (link, above)


class Lags:
    """One network, and the links that lag in it."""

    def __init__(self, made: Crew, settings: AlarmSettings) -> None:
        self.made = made
        self.settings = settings
        self.alarms = Alarms(made.folder / f"{_CONTROLLER}.out")
        self.interval = settings.interval_ms / 1e3
        self.names = [f"p{number}" for number in range(settings.processes)]
        self.removed = 0

    def start(self) -> None:
        """Start the network and all processes."""
        self.made.start_member(1)
        interval = int(self.settings.interval_ms * 1e6)
        for switch in self.made.shape.switches:
            self._start(switch, SwitchOrders(self.made.url, switch, interval))
        for number, name in enumerate(self.names):
            orders = ProcessOrders(
                self.made.url, name, number % _RACKS, interval, self.settings.pause_s,
                self.settings.seed * 1_000 + number,
            )  # fmt: skip
            self._start(name, orders)
        for name in self.names:
            self.made.wait_for(name, "ready")

    def _start(self, name: str, orders: ProcessOrders | SwitchOrders) -> None:
        text = msgspec.json.encode(orders).decode()
        self.made.start(name, "-m", "weir_lab.bench.toc.limits.alarm_worker", text)

    def status(self) -> Mapping[str, Any]:
        """Return what the controller says."""
        (address,) = addresses_of(self.made.url)
        return asyncio.run(ask_once(address, {"op": "status"}))

    def settle(self) -> None:
        """Wait until no link has lagged for a while, and all processes are here."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._look()
            quiet = time.monotonic() - self.alarms.last_at
            if not self.alarms.lagging and quiet > _WELL * self.interval:
                here = {one["name"] for one in self.status()["processes"] if one["connected"]}
                if here >= {*self.names}:
                    return
            if time.monotonic() > until:
                raise CrewFailed(f"links lag without an end: {sorted(self.alarms.lagging)}")

    def watch(self, seconds: float) -> tuple[list[Mapping[str, Any]], int]:
        """Let nothing be wrong; return the alarms of that time, and how many processes failed."""
        before, failed = len(self.alarms.begun), self.status()["failed"]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look()
        return self.alarms.begun[before:], self.status()["failed"] - failed

    def round(self, cause: str, link: list[str]) -> AlarmRound:
        """Let a link lag until it is named."""
        for _ in range(_TRIES):
            self.settle()
            failed = self.status()["failed"]
            before = len(self.alarms.begun)
            with self._lagging(cause, link[0]):
                began = time.monotonic()
                named = self._wait_for(cause, link, before, began + _PATIENCE * self.interval)
                following = time.monotonic() + _FOLLOWING * self.interval
                while time.monotonic() < following:
                    self._look()
            told = self.alarms.begun[before:]
            self.settle()
            gone = self.status()["failed"] - failed
            if not gone:
                break
            self.removed += gone
        wrong = [one for one in told if not is_right(one, cause, link)]
        named_t = None if named is None else round((named - began) / self.interval, 1)
        return AlarmRound(cause, link, named_t, len(wrong), [_line(one) for one in told])

    def _wait_for(self, cause: str, link: list[str], before: int, until: float) -> float | None:
        while time.monotonic() < until:
            self._look()
            for one in self.alarms.begun[before:]:
                if one["link"] == link and is_right(one, cause, link):
                    return time.monotonic()
        return None

    def _look(self) -> None:
        time.sleep(_LOOK_SECONDS)
        self.made.check()
        self.alarms.read()

    @contextlib.contextmanager
    def _lagging(self, cause: str, sender: str) -> Iterator[None]:
        """Let what `sender` sends to the switch above it lag."""
        if cause == "stopped process":
            with stopped(self.made.running[sender].pid, self.interval):
                yield
            return
        to = self._address(_SPINE) if sender in self.made.shape.switches else ""
        self.made.tell(sender, f"{cause} {to}")
        try:
            yield
        finally:
            self.made.tell(sender, "well")

    def _address(self, switch: str) -> str:
        at = {one["switch"]: f"{one['host']}:{one['port']}" for one in self.status()["switches"]}
        return at[switch_id(switch)]


@contextlib.contextmanager
def stopped(pid: int, interval: float) -> Iterator[None]:
    """Stop a process again and again while the block runs, each time for less than it is dead."""
    ends = threading.Event()

    def stop() -> None:
        try:
            while not ends.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(LAG_INTERVALS * interval)
                os.kill(pid, signal.SIGCONT)
                ends.wait(_RUNS * interval)
        finally:
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _line(found: Mapping[str, Any]) -> str:
    link, hop = (" to ".join(found[key]) for key in ("link", "hop"))
    return f"{link} lags by {found['behind_ms']} ms from {hop} on: {found['cause']}"


def measure_alarm(settings: AlarmSettings, progress: Progress = lambda _: None) -> AlarmResult:
    """Let all be well, and then let one link after the other lag. Raises CrewFailed."""
    began = time.monotonic()
    shape = Shape(_RACKS, 1, 0, 1, settings.interval_ms)
    rounds: list[AlarmRound] = []
    with (
        tempfile.TemporaryDirectory(prefix="weir-toc-", dir=settings.folder) as folder,
        crew(Path(folder), shape) as made,
    ):
        lags = Lags(made, settings)
        lags.start()
        lags.settle()
        false, removed_in_quiet = lags.watch(settings.quiet_seconds)
        for cause, link in settings.plan(lags.names):
            rounds.append(lags.round(cause, link))
            progress(len(rounds))
        lags.settle()
        counted, told = lags.status()["lagged"], len(lags.alarms.begun)
    return judged(settings, rounds, false, abs(counted - told), lags.removed, removed_in_quiet,
                  time.monotonic() - began)  # fmt: skip


def judged(
    settings: AlarmSettings, rounds: Sequence[AlarmRound], false: Sequence[Mapping[str, Any]],
    uncounted: int, removed: int, removed_in_quiet: int, seconds: float,
) -> AlarmResult:  # fmt: skip
    """Return what all rounds have shown. `false` are alarms while all was well."""
    times = [one.named_t for one in rounds if one.named_t is not None]
    causes = {
        cause: max((one.named_t or 0.0 for one in rounds if one.cause == cause), default=0.0)
        for cause in OF_PROCESSES
    }
    examples = [f"all was well, and {_line(one)}" for one in false]
    for one in rounds:
        if one.named_t is None or one.wrong:
            link = " to ".join(one.link)
            examples.append(f"{link}, {one.cause}: {'; '.join(one.told) or 'nothing was told'}")
    return AlarmResult(
        rounds=len(rounds), unnamed=len(rounds) - len(times),
        named_t_max=max(times, default=0.0),
        named_t_median=statistics.median(times) if times else 0.0, causes=causes,
        wrong=sum(one.wrong for one in rounds), quiet_seconds=settings.quiet_seconds,
        false_alarms=len(false), uncounted=uncounted, removed=removed,
        removed_in_quiet=removed_in_quiet, seconds=round(seconds, 1),
        examples=examples[:_EXAMPLES_MAX], each=[*rounds],
    )  # fmt: skip
