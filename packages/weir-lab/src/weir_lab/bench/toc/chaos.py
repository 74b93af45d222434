"""Kills and stops of real processes, kills of aggregators and leaders of the controller, cuts of
cables, and what came of each.

Workers on two racks send both services to each other all the time, and write down what they are
given. In each round one process is killed with SIGKILL, or a cable between a rack and the spine is
cut, both ways or one way: then the processes of one rack go on, and those of the other one fail.
In a network of its own, of three tiers, the cable between a spine and the core is cut: there is
another spine beside it, so nobody may fail, and messages cross the core all the time.
*Detection* is the time until the first process that goes on is told, *recovery* that until each of
them is given reliable messages again that were sent after the kill. Then the victim is started
anew, or the cable heals, and the next round begins once all hear each other. At the end `failures`
judges every message.

A process can also be stopped by SIGSTOP. For 5 intervals nobody may fail, and recovery is the time
until all are given messages again; for longer the process fails, goes on, settles what it holds,
and joins again. And a leader can be killed while it handles the failure of a process.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.toc.cables import Cable
from weir_lab.bench.toc.chaos_worker import Orders
from weir_lab.bench.toc.crew import PATIENCE_SECONDS, Crew, CrewFailed, Shape, crew
from weir_lab.bench.toc.failures import Trace, violations
from weir_toc.errors import TocError
from weir_toc.hosts.frames import addresses_of, ask_once
from weir_toc.topology import rack_of

#: Kinds of stops, and how long each one is in intervals. A process fails by the second one.
STOPS = {"stall": 5, "stop": 50}
#: What happens by default. A minute's stop takes a minute, so it is asked for.
USUAL = ("process", "aggregator", "leader", "cable", "handling", *STOPS, "core")
KINDS = (*USUAL, "minute")
_MINUTE_SECONDS = 60.0
#: What the status shows of a failure, in this order: it is reported, decided, and answered by all.
PHASES = ("undecided", "unsettled", "to_remove")
_MISSED = "over"
RACKS = 2
_SPINE, _CORE = "spine-0", "core-0"
#: Spines of the network in which cables to the core are cut: two above each rack. With fewer, racks
#: share their spines, and nothing between them would cross the core.
SPINES = 4
_EXAMPLES_MAX = 20
_LOOK_SECONDS = 0.01
_NS_PER_MS = 1_000_000


class Struck(NamedTuple):
    """What was struck, how many processes fail by it, and detection and recovery in nanoseconds."""

    victim: str
    failed: int
    detection: int
    recovery: int
    passed: int = 0


class Settings(msgspec.Struct, frozen=True):
    """So many faults of each kind among so many workers."""

    times: int = 20
    kinds: tuple[str, ...] = USUAL
    workers: int = 4
    interval_ms: float = 20.0
    #: Seconds between the scatterings of a worker.
    pause_s: float = 0.05
    seed: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(times=(self.times, 1, 1_000), workers=(self.workers, 2 * RACKS, 50))
        if not self.kinds or not {*self.kinds} <= {*KINDS}:
            raise ValueError(f"kinds: some of {', '.join(KINDS)}")
        if not 1 <= self.interval_ms <= 1_000:
            raise ValueError("the interval must be 1 to 1000 ms")


class Round(msgspec.Struct, frozen=True):
    """One kill or cut. Times are from it on, in ms and in intervals T.

    Of a leader, detection is when another one leads, and recovery when all nodes are connected to
    it and processes hear each other. Of a stall nobody is told: detection is 0. Of a cable to the
    core, detection is when a switch is told that it is dead, and recovery when each process has
    since been given reliable messages of all that were sent after the cut.
    """

    number: int
    kind: str
    victim: str
    failed: int
    detection_ms: float
    recovery_ms: float
    detection_t: float
    recovery_t: float
    #: Reliable messages from one rack to the other that were sent once a cable to the core was
    #: known to be dead, and were given before it healed; 0 of all other kinds.
    passed: int


class Times(msgspec.Struct, frozen=True):
    """All rounds of one kind."""

    rounds: int
    detection_median_ms: float
    detection_max_ms: float
    recovery_median_ms: float
    recovery_max_ms: float
    detection_median_t: float
    recovery_median_t: float
    recovery_max_t: float
    passed_min: int


class Result(msgspec.Struct, frozen=True):
    """What came of all rounds."""

    rounds: int
    kinds: dict[str, Times]
    messages: int
    violations: int
    #: Leaders that were killed while a failure was handled, by what the status said of it then;
    #: `over` if it was settled before that was seen.
    handled: dict[str, int]
    #: Processes that were excluded, and were not killed, stopped for 50 T or longer, or cut off,
    #: nor was their aggregator killed.
    false_removals: int
    examples: list[str]
    seconds: float
    each: list[Round]

    @property
    def clean(self) -> bool:
        """Whether no promise was broken and nobody was excluded by mistake."""
        return not self.violations and not self.false_removals


class Logs:
    """The logs of all workers, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[int, Trace]] = {}

    def read(self) -> None:
        """Take all whole lines that have come."""
        for path in self._folder.glob("w*.log"):
            offset, trace = self._read.setdefault(path, (0, Trace(path.name.split(".")[0])))
            with path.open("rb") as log:
                log.seek(offset)
                whole, newline, _ = log.read().rpartition(b"\n")
            for line in whole.splitlines():
                trace.take(line.decode())
            self._read[path] = offset + len(whole) + len(newline), trace

    @property
    def traces(self) -> list[Trace]:
        """Those of all processes that have joined."""
        return [trace for _, trace in self._read.values() if trace.process]

    def current(self) -> dict[str, Trace]:
        """The last trace of each worker, by name."""
        return {one.name: one for one in sorted(self.traces, key=lambda one: one.joined)}


class Chaos:
    """One network under kills and cuts."""

    def __init__(self, made: Crew, settings: Settings) -> None:
        self.made = made
        self.settings = settings
        self.logs = Logs(made.folder)
        self.names = [f"w{number}" for number in range(settings.workers)]
        #: When processes were killed or cut off, or their aggregators were killed.
        self.deaths: dict[int, int] = {}
        #: Those that were stopped for long and went on.
        self.stopped: set[int] = set()
        self.handled = dict.fromkeys((*PHASES, _MISSED), 0)
        self._starts = dict.fromkeys(self.names, 0)
        self._dice = random.Random(settings.seed)

    def start(self) -> None:
        """Start the network and the workers, and wait until all hear each other."""
        self.made.start_network()
        for name in self.names:
            self._start_worker(name)
        self._hear_each_other()

    def strike(self, number: int, kind: str) -> Round:
        """Let one fault of a kind happen, wait for the others, and undo it."""
        strikes: dict[str, Callable[[], Struck]] = {
            "process": self._kill_process,
            "aggregator": self._kill_aggregator,
            "leader": self._kill_leader,
            "cable": self._cut_cable,
            "handling": self._kill_both,
            "stall": self._stall,
            "stop": lambda: self._stop(STOPS["stop"] * self._interval),
            "minute": lambda: self._stop(_MINUTE_SECONDS),
            "core": self._cut_core,
        }
        struck = strikes[kind]()
        self._hear_each_other()
        detection, recovery = struck.detection / _NS_PER_MS, struck.recovery / _NS_PER_MS
        interval = self.settings.interval_ms
        return Round(number, kind, struck.victim, struck.failed, round(detection, 1),
                     round(recovery, 1), round(detection / interval, 1),
                     round(recovery / interval, 1), struck.passed)  # fmt: skip

    def end(self) -> None:
        """Let all workers end their load, and wait until everything is delivered."""
        for name in self.names:
            self.made.tell(name)
        self._wait(lambda: all(one.has_ended for one in self.logs.current().values()), "the end")

    def judge(self) -> list[str]:
        """Return all promises that were broken."""
        return violations(self.logs.traces, self.deaths, self.stopped)

    @property
    def false_removals(self) -> set[int]:
        """The processes that were excluded, and no fault was to let them fail."""
        excluded = {one.process for one in self.logs.traces if one.is_excluded}
        told = {one.process for trace in self.logs.traces for one in trace.told}
        return (excluded | told) - self.deaths.keys()

    def _kill_process(self) -> Struck:
        victim = self._dice.choice(self.names)
        return self._strike_members(
            victim, [self.logs.current()[victim]],
            lambda: self.made.kill(victim), lambda: self._start_worker(victim),
        )  # fmt: skip

    @property
    def _interval(self) -> float:
        """T in seconds."""
        return self.settings.interval_ms / 1_000

    def _stall(self) -> Struck:
        """Stop a process for less than the time after which it is silent."""
        victim = self._dice.choice(self.names)

        def stop() -> None:
            self.made.running[victim].send_signal(signal.SIGSTOP)
            time.sleep(STOPS["stall"] * self._interval)
            self.made.running[victim].send_signal(signal.SIGCONT)

        return self._strike_members(victim, [], stop, lambda: None)._replace(detection=0)

    def _stop(self, seconds: float) -> Struck:
        """Stop a process for so long that it fails, and let it go on."""
        victim = self._dice.choice(self.names)
        process = self.made.running[victim]
        gone = self.logs.current()[victim]
        ends = time.monotonic() + seconds
        self.stopped.add(gone.process)

        def go_on() -> None:
            time.sleep(max(0.0, ends - time.monotonic()))
            process.send_signal(signal.SIGCONT)

        return self._strike_members(
            victim, [gone], lambda: process.send_signal(signal.SIGSTOP), go_on
        )

    def _kill_both(self) -> Struck:
        """Kill a process, and the leader of the controller while it handles that failure."""
        victim = self._dice.choice(self.names)
        leader = self._leader()
        assert leader is not None
        member = f"controller-{leader['member']}"
        wanted = PHASES[sum(self.handled.values()) % len(PHASES)]

        found = _MISSED

        def strike() -> None:
            nonlocal found
            self.made.kill(victim)
            found = self._wait_for_phase(leader, wanted)
            self.made.kill(member)

        def undo() -> None:
            self._start_worker(victim)
            self.made.start_member(leader["member"])

        gone = [self.logs.current()[victim]]
        struck = self._strike_members(victim, gone, strike, undo)
        self.handled[found] += 1
        return struck._replace(victim=f"{victim} and {member}, {found}")

    def _wait_for_phase(self, leader: Mapping[str, Any], wanted: str) -> str:
        """Wait until a leader handles a failure so far, and return that; or until it has handled
        the failure and that was not seen.
        """
        address = addresses_of(self.made.url)[leader["member"] - 1]
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            found = asyncio.run(ask_once(address, {"op": "status"}))
            if found[wanted]:
                return wanted
            if found["failed"] > leader["failed"] and not any(found[one] for one in PHASES):
                return _MISSED
        raise CrewFailed(f"no failure was found in {PATIENCE_SECONDS:g} s")

    def _kill_aggregator(self) -> Struck:
        """Kill the aggregator of a rack, with which its workers fail."""
        rack = self._dice.randrange(RACKS)
        victim = f"rack-{rack}"
        return self._strike_members(
            victim, self._of_rack(rack),
            lambda: self.made.kill(victim), lambda: self.made.start_switch(victim),
        )  # fmt: skip

    def _cut_cable(self) -> Struck:
        """Cut the cable of a rack: those of the rack with fewer processes fail, or of the last."""
        cable = self._cable(f"rack-{self._dice.randrange(RACKS)}", _SPINE)
        # Those of the rack with most processes go on; of two that have as many, of the first one.
        loser = min(range(RACKS), key=lambda rack: (len(self._of_rack(rack)), -rack))
        return self._strike_members(cable.victim, self._of_rack(loser), cable.cut, cable.heal)

    def _cut_core(self) -> Struck:
        """Cut the cable of a spine to the core. All go on by the spine beside it."""
        cable = self._cable(f"spine-{self._dice.randrange(SPINES)}", _CORE)
        began = time.monotonic_ns()
        cable.cut()
        self._wait(lambda: cable.dead_at(began) > 0, f"news of the cut of {cable.victim}")
        detected = cable.dead_at(began)
        self._wait(lambda: self._heard_at(began, detected) > 0,
                   f"recovery from the cut of {cable.victim}")  # fmt: skip
        recovered = self._heard_at(began, detected)
        self._hear_each_other()
        passed = between_racks(self.logs.current().values(), detected)
        cable.heal()
        self._wait(lambda: cable.is_whole, f"the return of {cable.victim}")
        return Struck(cable.victim, 0, detected - began, recovered - began, passed)

    def _cable(self, lower: str, upper: str) -> Cable:
        """Return a cable that is to be cut from one end, from the other one, or from both."""
        ends = lower, upper
        leader = self._leader()
        assert leader is not None
        return Cable(self.made, ends, self._dice.choice((ends[:1], ends[1:], ends)), leader)

    def _of_rack(self, rack: int) -> list[Trace]:
        return [one for one in self.logs.current().values() if rack_of(one.process) == rack]

    def _strike_members(
        self, victim: str, gone: list[Trace], strike: Callable[[], None], undo: Callable[[], None]
    ) -> Struck:
        """Let workers fail, wait until the others go on, and until all are back."""
        failed = {one.process for one in gone}
        others = [one for one in self.logs.current().values() if one.process not in failed]
        began = time.monotonic_ns()
        self.deaths.update(dict.fromkeys(failed, began))
        strike()

        def recovered() -> list[int]:
            return [one.recovered_at(began, failed) for one in others if not one.is_excluded]

        self._wait(lambda: all(recovered()), f"recovery from the fault of {victim}")
        # Where all others were excluded, too, nobody is told; `measure` counts them.
        now = time.monotonic_ns()
        told = (one.at for trace in others for one in trace.told if one.process in failed)
        times = min(told, default=now), max(recovered(), default=now)
        undo()
        # Those that were behind an aggregator or a cable join again by themselves.
        self._wait(lambda: all(one.process not in failed for one in self.logs.current().values()),
                   f"the return of {sorted(one.name for one in gone)}")  # fmt: skip
        return Struck(victim, len(failed), times[0] - began, times[1] - began)

    def _kill_leader(self) -> Struck:
        leader = self._leader()
        assert leader is not None
        id = leader["member"]
        began = time.monotonic_ns()
        self.made.kill(f"controller-{id}")
        self._wait(lambda: self._leader(but=id) is not None, "another leader")
        detected = time.monotonic_ns()
        self._wait(lambda: self._is_whole(self._leader(but=id)), "all nodes at the new leader")
        self._hear_each_other()
        recovered = time.monotonic_ns()
        self.made.start_member(id)
        return Struck(f"controller-{id}", 0, detected - began, recovered - began)

    def _leader(self, but: int = 0) -> Mapping[str, Any] | None:
        """Return what the leader says, unless it is member `but`."""
        for address in addresses_of(self.made.url):
            try:
                found = asyncio.run(ask_once(address, {"op": "status"}))
            except (OSError, EOFError, TimeoutError, TocError):
                continue
            if found.get("role") == "leader" and found["member"] != but and found.get("network"):
                return found
        return None

    def _is_whole(self, leader: Mapping[str, Any] | None) -> bool:
        nodes = [*leader["switches"], *leader["processes"]] if leader is not None else []
        return bool(nodes) and all(one["connected"] for one in nodes)

    def _start_worker(self, name: str) -> None:
        self._starts[name] += 1
        rack = self.names.index(name) % RACKS
        orders = Orders(self.made.url, name, rack, str(self.made.folder), self._starts[name],
                        self.settings.pause_s)  # fmt: skip
        self.made.start(name, "-m", "weir_lab.bench.toc.chaos_worker",
                        msgspec.json.encode(orders).decode())  # fmt: skip

    def _hear_each_other(self) -> None:
        """Wait until every worker is given reliable messages of each, sent from now on."""
        since = time.monotonic_ns()
        self._wait(lambda: self._heard_at(since) > 0, "messages of all processes to all")

    def _heard_at(self, called: int, since: int = 0) -> int:
        """Return what `all_heard_at` does of all workers; 0 if one has not joined yet."""
        current = self.logs.current().values()
        return all_heard_at(current, called, since) if len(current) == len(self.names) else 0

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        self.logs.read()
        while not holds():
            self.made.check()
            if time.monotonic() > until:
                raise CrewFailed(f"{what} did not come in {PATIENCE_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)
            self.logs.read()


def measure(settings: Settings, folder: Path, tell: Callable[[Round], None]) -> Result:
    """Run all rounds, kinds by turns but `core` at the end, and judge. Raises `CrewFailed`."""
    began = time.monotonic()
    rounds: list[Round] = []
    made: list[Chaos] = []
    core = tuple(kind for kind in settings.kinds if kind == "core")
    others = tuple(kind for kind in settings.kinds if kind != "core")
    for kinds, shape, at in (
        (others, Shape(RACKS, 1, 0, 3, settings.interval_ms), folder),
        (core, Shape(RACKS, SPINES, 1, 3, settings.interval_ms), folder / "core"),
    ):
        if kinds:
            at.mkdir(parents=True, exist_ok=True)
            made.append(_struck(settings, kinds, shape, at, rounds, tell))
    return result_of(settings, made, rounds, time.monotonic() - began)


def _struck(
    settings: Settings,
    kinds: Sequence[str],
    shape: Shape,
    folder: Path,
    rounds: list[Round],
    tell: Callable[[Round], None],
) -> Chaos:
    """Return a network after all rounds of these kinds, which are added to `rounds`."""
    with crew(folder, shape) as made:
        chaos = Chaos(made, settings)
        chaos.start()
        for number in range(settings.times * len(kinds)):
            rounds.append(chaos.strike(len(rounds) + 1, kinds[number % len(kinds)]))
            tell(rounds[-1])
        chaos.end()
    return chaos


def result_of(
    settings: Settings, made: Sequence[Chaos], rounds: Sequence[Round], seconds: float
) -> Result:
    """Judge all networks, and return what came of their rounds."""
    found = [one for chaos in made for one in chaos.judge()]
    return Result(
        rounds=len(rounds),
        kinds={kind: _times(one for one in rounds if one.kind == kind) for kind in settings.kinds},
        messages=sum(len(trace.got) for chaos in made for trace in chaos.logs.traces),
        violations=len(found),
        handled={one: sum(chaos.handled[one] for chaos in made) for one in (*PHASES, _MISSED)},
        false_removals=sum(len(chaos.false_removals) for chaos in made),
        examples=found[:_EXAMPLES_MAX],
        seconds=round(seconds, 1),
        each=[*rounds],
    )


def all_heard_at(traces: Collection[Trace], called: int, since: int = 0) -> int:
    """Return when each process had been given reliable messages of all of them since then that were
    called after `called`; 0 if one has not been yet.
    """
    here = {one.process for one in traces}
    heard = [one.heard_at(called, since) for one in traces]
    if not all(here <= one.keys() for one in heard):
        return 0
    return max(one[source] for one in heard for source in here)


def between_racks(traces: Iterable[Trace], called: int) -> int:
    """Return how many reliable messages came from another rack that were called after `called`."""
    return sum(
        rack_of(source) != rack_of(trace.process)
        for trace in traces
        for (_, _, source), _ in trace.reliable_since(called)
    )


def _times(of_kind: Iterable[Round]) -> Times:
    rounds = [*of_kind]
    detection = [one.detection_ms for one in rounds]
    recovery = [one.recovery_ms for one in rounds]
    return Times(
        len(rounds), statistics.median(detection), max(detection), statistics.median(recovery),
        max(recovery), statistics.median(one.detection_t for one in rounds),
        statistics.median(one.recovery_t for one in rounds), max(one.recovery_t for one in rounds),
        min(one.passed for one in rounds),
    )  # fmt: skip
