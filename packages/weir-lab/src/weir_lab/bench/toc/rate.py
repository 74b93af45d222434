"""How many messages a second one process sends to another, and how late.

On loopback three processes are linked to one aggregator: a sender, a receiver, and one that is
idle, whose memory is measured. With a place of aggregation the sender and the receiver are alone in
a tree of network namespaces, each in a rack of its own, so that packets cross a rack, a spine and a
rack. All messages are numbered and compared. Rates are those of the receiver, from its first
message to its last one; latencies are those of single messages in an idle network.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.toc.crew import Crew, CrewFailed, Shape, crew
from weir_lab.bench.toc.limits.ports import resident_mb
from weir_lab.bench.toc.rate_worker import HEAD, RateOrders, unpacked
from weir_lab.bench.toc.tree import missing_for, missing_for_trees, tree_crew
from weir_toc.places import Place

#: On two cores each process of a tree takes time from the pair: nobody is idle there.
_PAIR = ("sender", "receiver")
_ROLES = (*_PAIR, "idle")
LOOPBACK = "loopback"
#: Where packets can go: through an aggregator on loopback, or a tree with a place of aggregation.
WAYS = (LOOPBACK, *(one.value for one in Place))
_SERVICES = ("best effort", "reliable")
Progress = Callable[[int], None]


class RateSettings(msgspec.Struct, frozen=True):
    """So many messages of so many bytes at full speed, then `lone` ones, by each service."""

    messages: int = 500_000
    lone: int = 200
    size: int = 64
    #: On two cores a process may be 10 ms late: with 1 ms it is taken for dead.
    interval_ms: float = 5.0
    folder: str | None = None
    #: One of `WAYS`.
    place: str = LOOPBACK

    @property
    def is_tree(self) -> bool:
        """Whether packets cross a tree of network namespaces."""
        return self.place != LOOPBACK

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            messages=(self.messages, 2, 100_000_000), lone=(self.lone, 1, 100_000),
            size=(self.size, HEAD.size, 1_400),
        )  # fmt: skip
        if not 0.1 <= self.interval_ms <= 1_000:
            raise ValueError(f"interval_ms={self.interval_ms}: it must be 0.1 to 1000")
        if self.place not in WAYS:
            raise ValueError(f"place: one of {', '.join(WAYS)} is possible")


class Service(msgspec.Struct, frozen=True):
    """What one service did; all is 0 if it could not be measured."""

    name: str
    messages_per_s: float = 0.0
    sent: int = 0
    received: int = 0
    #: Of which the sender was told that they were not delivered, and messages out of order.
    failed: int = 0
    misplaced: int = 0
    #: Neither delivered nor told: none of them may be.
    lost: int = 0
    latency_p50_ms: float = 0.0
    latency_p99_ms: float = 0.0
    #: In intervals.
    latency_p50_t: float = 0.0
    sender_us: float = 0.0
    receiver_us: float = 0.0
    #: Why it could not be measured; empty if it was.
    problem: str = ""


class RateResult(msgspec.Struct, frozen=True):
    """Both services; none if this machine lacks what the tree takes."""

    best_effort_per_s: float
    reliable_per_s: float
    lost: int
    misplaced: int
    idle_rss_mb: float
    services: list[Service]
    #: What this machine lacks; empty if it was measured.
    missing: str = ""
    #: Whether this machine builds trees of namespaces: then nothing may be missing.
    trees: bool = False

    @property
    def clean(self) -> bool:
        """Whether nothing was lost or came out of order, and all was measured that can be here."""
        problems = any(one.problem for one in self.services)
        is_skipped = self.trees and bool(self.missing)
        return not self.lost and not self.misplaced and not problems and not is_skipped


def measure_rate(settings: RateSettings, progress: Progress = lambda _: None) -> RateResult:
    """Run both services, one after the other. Once a process fails, nothing more is measured."""
    has_trees = settings.is_tree and not missing_for_trees()
    why = settings.is_tree and (missing_for_trees() or missing_for(Place(settings.place)))
    if why:
        return RateResult(0.0, 0.0, 0, 0, 0.0, [], why, has_trees)
    roles = _PAIR if settings.is_tree else _ROLES
    services: list[Service] = []
    rss_mb = 0.0
    try:
        with _network(settings) as made:
            _start(made, settings, roles)
            for number, name in enumerate(_SERVICES):
                flood = _step(made, roles)
                progress(2 * number + 1)
                lone = _step(made, roles)
                progress(2 * number + 2)
                services.append(measured(name, settings, flood, lone))
            if "idle" in roles:
                rss_mb = resident_mb(made.running["idle"].pid)
    except CrewFailed as error:
        services += [Service(name, problem=str(error)) for name in _SERVICES[len(services) :]]
    best_effort, reliable = services
    return RateResult(
        best_effort.messages_per_s, reliable.messages_per_s, sum(one.lost for one in services),
        sum(one.misplaced for one in services), rss_mb, services, trees=has_trees,
    )  # fmt: skip


@contextlib.contextmanager
def _network(settings: RateSettings) -> Iterator[Crew]:
    """The network that settings ask for: all of its switches and its controller run."""
    with tempfile.TemporaryDirectory(prefix="weir-toc-", dir=settings.folder) as folder:
        if settings.is_tree:
            shape = Shape(racks=len(_PAIR), spines=1, interval_ms=settings.interval_ms)
            with tree_crew(Path(folder), shape, Place(settings.place), len(_PAIR)) as made:
                yield made
        else:
            with crew(Path(folder), Shape(interval_ms=settings.interval_ms)) as made:
                made.start_network()
                yield made


def _start(made: Crew, settings: RateSettings, roles: Sequence[str]) -> None:
    for number, role in enumerate(roles):
        orders = RateOrders(made.url, role, role, [*roles], settings.messages, settings.lone,
                            settings.size, settings.interval_ms,
                            number if settings.is_tree else 0)  # fmt: skip
        made.start_in(number, role, "-m", "weir_lab.bench.toc.rate_worker",
                      msgspec.json.encode(orders).decode())  # fmt: skip
    for role in roles:
        made.wait_for(role, "ready")


def _step(made: Crew, roles: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Let all processes do their next step; return what each says of it."""
    for role in roles:
        made.tell(role)
    return {role: made.wait_for(role, "done", 600.0)[1] for role in roles}


def measured(
    name: str,
    settings: RateSettings,
    flood: dict[str, dict[str, Any]],
    lone: dict[str, dict[str, Any]],
) -> Service:
    """Return what a service did, by what the processes say of both steps."""
    sent, got = flood["sender"], flood["receiver"]
    p50, p99 = (one or 0.0 for one in percentiles(lone["receiver"]["latencies"], 0.5, 0.99))
    lost = sum(_silent(step["sender"]["told"], step["receiver"]["seen"]) for step in (flood, lone))
    return Service(
        name, round(got["received"] / max(1e-9, got["seconds"])), settings.messages,
        got["received"], sum(unpacked(sent["told"])),
        got["misplaced"] + lone["receiver"]["misplaced"], lost,
        round(p50 / 1e6, 3), round(p99 / 1e6, 3), round(p50 / 1e6 / settings.interval_ms, 2),
        round(1e6 * sent["cpu_s"] / settings.messages, 2),
        round(1e6 * got["cpu_s"] / settings.messages, 2),
    )  # fmt: skip


def _silent(told: str, seen: str) -> int:
    """How many messages were not delivered, and their sender was not told of it."""
    flags = unpacked(told), unpacked(seen)
    return sum(not was_told and not was_seen for was_told, was_seen in zip(*flags, strict=True))
