"""The same work on weir and on its peers, one after the other, each on a fresh folder.

A peer that fails, or loses anything, has a second go; weir has none. A comparison in which a peer
failed twice is not clean: it may have been the best.

By turns, each has several runs at an amount, and the one in the middle counts: a disk that stands
still for a moment decides nothing then, neither for weir nor against it.

A peer is driven by a client that only moves bytes; weir by the client that users have, so what is
unequal is unequal in the peers' favour. Devices of a burst speak raw bytes on all sides. All have
the same number of bytes under way. weir takes whole columns of messages; how fast it is where an
application hands over and takes one message at a time stands beside, as `weir:messages`.

What flows does so for some seconds, behind probes, so that no side lives on what it had prepared.
weir's first segments are there before the first message, and each further one is written twice:
its rate over 8 s is about half of what `bench throughput` shows flat out in its 2 s, and the same
as that shows with `--seconds 8s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from weir_lab.bench import burst, latency
from weir_lab.bench.comparison.round import Round, Rule, Say, line, play
from weir_lab.bench.comparison.workers import WORKERS_MAX, Work, share
from weir_lab.bench.flow import FlowFailed, flow, shared_out, singles
from weir_lab.bench.flow import Shape as FlowShape
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.open_files import allow_connections
from weir_lab.bench.sides.contender import Contender, Ran
from weir_lab.bench.sides.own import BY_MESSAGE, Own, running_own
from weir_lab.bench.sides.peers.peers import ABSENT, peer, set_of
from weir_lab.bench.sides.peers.rival import running_rival
from weir_lab.bench.sides.peers.server import NotInstalled, Peer
from weir_lab.bench.sides.peers.sets import NODES
from weir_lab.bench.sides.side import Side, topic_name

Shape = Literal[
    "timeliness", "produce", "consume", "both", "singles", "workers", "burst", "latency",
    "dormitory",
]  # fmt: skip
#: What locks are compared with that report to weir.
BEHIND_THE_LOCKS = ("direct", "activemq")
#: In these weir's columns are handed over whole, and message by message beside.
_OF_COLUMNS = ("timeliness", "produce", "consume", "both", "workers")
#: In these Python clients that are shipped for peers may be compared, too; those that are not
#: installed are left out.
_OF_CLIENTS = ("singles", "workers")
#: Of these, less is better.
TIMED = ("burst", "latency", "dormitory")

_TO_THE_LAST_REPLY = "s to the last reply"
#: A probe that takes this long tells the rate well enough to choose how many messages to send.
_PROBE_S = 0.5
_PROBE_MESSAGES = 2_000
_PROBE_FACTOR = 8


class Settings(msgspec.Struct, frozen=True):
    """What to compare. `amounts` are producers, those of singles on a connection each that awaits
    every publish, workers that share a topic, or devices that report; latency has one run.
    """

    peers: list[str]
    shape: Shape = "timeliness"
    amounts: list[int] = msgspec.field(default_factory=lambda: [1])
    size: int = 100
    seconds: float = 8.0
    messages_max: int = 4_000_000
    deadline_s: float = 120.0
    folder: str | None = None
    replicas: int = 1
    #: Bursts and latencies are measured once the disk is at rest, or after this long.
    rest_s: float = 0.0
    #: Runs of each side at an amount, by turns; odd, for the one in the middle counts.
    turns: int = 1
    #: A run beside which others used more than so many cores is run again, up to `reruns` times.
    foreign_cores_max: float = 0.2
    reruns: int = 2

    def check(self) -> None:
        """Raise `ValueError` for what cannot be compared."""
        if self.replicas not in (1, NODES):
            raise ValueError(f"replicas={self.replicas}: peers run on 1 node, or on {NODES}")
        if self.shape != "dormitory":
            self._check_peers()
        elif self.replicas != 1 or not {*self.peers} <= {*BEHIND_THE_LOCKS}:
            there = ", ".join(BEHIND_THE_LOCKS)
            raise ValueError(f"shape dormitory: its peers are {there}, each on one node")
        if not self.peers or not self.amounts or min(self.amounts) < 1:
            raise ValueError("name at least one peer, and amounts of 1 or more")
        if self.shape == "workers" and max(self.amounts) > WORKERS_MAX:
            raise ValueError(f"workers={max(self.amounts)}: there may be {WORKERS_MAX}")
        if self.seconds <= 0 or self.deadline_s <= self.seconds:
            raise ValueError("seconds must be above 0 and below the deadline")
        if self.messages_max < max(self.amounts):
            raise ValueError("there must be a message for each producer")
        if self.foreign_cores_max < 0 or self.reruns < 0:
            raise ValueError("foreign cores and reruns must be 0 or more")
        if self.turns < 1 or self.turns % 2 == 0:
            raise ValueError(
                f"turns={self.turns}: it must be odd, for the one in the middle counts"
            )
        if self.turns > 1 and self.shape == "dormitory":
            raise ValueError(
                "shape dormitory: it has one turn, for what is lost in it must be told"
            )

    def _check_peers(self) -> None:
        for one in chosen(self.labels):
            if one.client is not None and self.shape not in _OF_CLIENTS:
                there = ", ".join(_OF_CLIENTS)
                raise ValueError(f"{one.name} is compared in the shapes {there} alone")
        if (
            self.shape == "workers"
            and self.peers
            and all(one.no_workers for one in chosen(self.labels))
        ):
            raise ValueError(f"shape workers: {chosen(self.labels)[0].no_workers}")

    @property
    def labels(self) -> list[str]:
        """The peers' names, as they run on one node or as a set."""
        return self.peers if self.replicas == 1 else [set_of(label) for label in self.peers]


class Comparison(msgspec.Struct, frozen=True):
    """What came of it, and what is behind the rounds."""

    unit: str
    times_best_synced: float | None
    times_best: float | None
    rounds: list[Round]
    #: Other brokers worth comparing with, and why that is not done.
    absent: str = ABSENT

    @property
    def clean(self) -> bool:
        """Whether every side did its work, and nothing was lost, repeated or changed."""
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """What went wrong, a line each.

        What peers lose in a dormitory is what that is to find out: there it is weir that must not.
        """
        judged = 1 if self.unit == _TO_THE_LAST_REPLY else None
        return [
            line(row)
            for one in self.rounds
            for row in one.rows
            if row.error is not None or (not row.clean and row in one.rows[:judged])
        ]


def chosen(labels: Sequence[str]) -> list[Peer]:
    """Return the peers in the settings that were named, each once. Raises `ValueError`."""
    found = {one.label: one for label in labels for one in peer(label)}
    return [*found.values()]


def compare(settings: Settings, say: Say) -> Comparison:
    """Run everything; `say` is told each row.

    Raises `NotInstalled` before anything is measured if a peer is missing, `ValueError` for
    settings that make no sense, and what weir's own run raises. Of shapes singles and workers a
    peer that is missing is left out, and that is said; of workers also one that is no work queue.
    """
    settings.check()
    if settings.shape in _OF_CLIENTS:
        settings = replace(settings, peers=_able(settings, say))
    amounts = settings.amounts if settings.shape != "latency" else [1]
    with _contenders(settings) as contenders:
        rule = Rule(
            lower_wins=settings.shape in TIMED,
            another_go=settings.shape != "dormitory",
            turns=settings.turns,
            foreign_cores_max=settings.foreign_cores_max,
            reruns=settings.reruns,
        )
        rounds = [play(contenders, rule, amount, say) for amount in amounts]
    synced = [one.times_best_synced for one in rounds if one.times_best_synced is not None]
    best = [one.times_best for one in rounds if one.times_best is not None]
    return Comparison(
        unit_of(settings.shape), min(synced, default=None), min(best, default=None), rounds
    )


def _able(settings: Settings, say: Say) -> list[str]:
    """Return the peers that are here and can do it, each in its setting; say which are left out."""
    found = []
    for label, name in zip(settings.labels, settings.peers, strict=True):
        sides = peer(label)
        try:
            for one in sides:
                one.version()
        except NotInstalled as error:
            say(f"{name} is left out: {error}")
            continue
        for one in sides:
            if settings.shape == "workers" and one.no_workers:
                say(f"{one.label} is left out: {one.no_workers}")
            else:
                found.append(one.label)
    return found


def unit_of(shape: Shape) -> str:
    """Return what a figure counts."""
    return {
        "burst": "s to the last confirm",
        "latency": "ms to a lone confirm, median",
        "dormitory": _TO_THE_LAST_REPLY,
    }.get(shape, "messages/s")


def _contenders(settings: Settings) -> AbstractContextManager[Sequence[Contender]]:
    """Return weir and, behind it, the brokers that it is compared with."""
    if settings.shape == "dormitory":
        # Only this shape needs a database.
        from weir_lab.bench.consumers.dormitory.platforms import platforms

        return platforms(settings.peers, settings.folder, settings.deadline_s)
    peers = chosen(settings.labels)
    for one in peers:
        one.version()

    def run_own(amount: int) -> Ran:
        return _ran(settings, running_own(settings.folder, settings.replicas), amount)

    def run_peer(label: str, amount: int) -> Ran:
        # A fresh one each time: a peer that was stopped keeps its process and port no more.
        (fresh,) = peer(label)
        return _ran(settings, running_rival(fresh, settings.folder), amount)

    def run_by_message(amount: int) -> Ran:
        running = running_own(settings.folder, settings.replicas, by_message=True)
        return _ran(settings, running, amount)

    own = [Contender(Own.label, "", Own.synced, run_own, own=True)]
    if settings.shape in _OF_COLUMNS:
        own.append(Contender(BY_MESSAGE, "", Own.synced, run_by_message, own=True))
    others = [
        Contender(one.label, one.settings, one.synced, partial(run_peer, one.label))
        for one in peers
    ]
    return nullcontext([*own, *others])


def _ran(settings: Settings, running: AbstractContextManager[Side], amount: int) -> Ran:
    if settings.shape in ("burst", "singles"):
        # Before the broker starts, which inherits the limit.
        allow_connections(amount)
    with running as side:
        result, figure = run(_measured(side, settings, amount))
        return Ran(side.version, side.settings, result, figure)


async def _measured(side: Side, settings: Settings, amount: int) -> tuple[Any, float | None]:
    if settings.shape == "burst":
        wanted = burst.Settings(amount, deadline_s=settings.deadline_s, rest_s=settings.rest_s)
        woken, _ = await burst.measure(side, wanted, topic_name(0))
        return woken, woken.seconds if woken.share_confirmed == 1 else None
    if settings.shape == "latency":
        lone = latency.Settings(
            size=settings.size, deadline_s=settings.deadline_s, rest_s=settings.rest_s
        )
        late, _ = await latency.measure(side, lone)
        return late, late.confirm_p50_ms
    assert settings.shape != "dormitory"  # which has no sides, but platforms
    if settings.shape == "workers":
        return await _worked(side, settings, amount)
    shape: FlowShape = "both" if settings.shape == "timeliness" else settings.shape
    messages = await _enough(side, settings, shape, amount)
    counts = shared_out(messages, amount)
    if shape == "singles":
        names = topic_name(98), topic_name(99)
        done = await singles(
            side, names[0], counts, settings.size, settings.deadline_s, behind=names[1]
        )
        return done, done.messages_per_s
    done = await flow(side, topic_name(99), shape, counts, settings.size, settings.deadline_s)
    return done, done.messages_per_s


async def _worked(side: Side, settings: Settings, workers: int) -> tuple[Work, float]:
    """Let workers take as many messages as they do in about the time that the settings say, and no
    more than are filled in within half the deadline.
    """
    messages, number = _PROBE_MESSAGES, 0
    size, deadline_s = settings.size, settings.deadline_s
    while messages < settings.messages_max:
        probe = await share(side, topic_name(number), workers, messages, size, deadline_s)
        if not probe.clean:
            raise FlowFailed(f"{side.label} lost, repeated or changed messages of a probe: {probe}")
        if probe.seconds >= _PROBE_S:
            wanted = probe.messages_per_s * settings.seconds
            filled = probe.filled_per_s * deadline_s / 2
            messages = min(settings.messages_max, max(workers, int(min(wanted, filled))))
            break
        messages *= _PROBE_FACTOR
        number += 1
    messages = min(messages, settings.messages_max)
    done = await share(side, topic_name(99), workers, messages, size, deadline_s)
    return done, done.messages_per_s


async def _enough(side: Side, settings: Settings, shape: FlowShape, producers: int) -> int:
    """Return how many messages take about as long as the settings say, found by growing probes."""
    messages = max(_PROBE_MESSAGES, producers)
    number = 0
    while messages < settings.messages_max:
        number += 1
        counts = shared_out(messages, producers)
        probe = await flow(
            side, topic_name(number), shape, counts, settings.size, settings.deadline_s
        )
        if not probe.clean:
            raise FlowFailed(f"{side.label} lost, repeated or changed messages of a probe: {probe}")
        if probe.seconds >= _PROBE_S:
            wanted = int(probe.messages_per_s * settings.seconds)
            return max(producers, min(settings.messages_max, wanted))
        messages *= _PROBE_FACTOR
    return settings.messages_max
