"""How much a receiver holds while packets of one link come late, by how late they come.

One process sends to another all the time. What a third one promises comes later by a delay that is
the same in a run, and the receiver waits for it: it holds what is sent meanwhile. The network is
the simulated one, so the delay is exact. In the last run more is sent than fits in the memory of
the receiver, which its windows must then keep to.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from weir_lab.bench.bounds import check_bounds
from weir_lab.toc.network import Faults
from weir_lab.toc.world import Shape, T, World
from weir_toc.endpoint.events import Service

_NS_PER_MS = 1_000_000
#: Before anything is measured windows are granted and grow.
_WARM_MS = 40
#: It is measured for so much longer than the delay.
_MEASURED_MS = 40
Progress = Callable[[int], None]


class BufferSettings(msgspec.Struct, frozen=True):
    """The delays in ms, and what is sent in each ms."""

    delays_ms: tuple[int, ...] = (0, 25, 50, 75, 100, 125)
    per_ms: int = 20
    size: int = 64
    #: In the last run, which has the longest delay.
    flood_per_ms: int = 120

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(per_ms=(self.per_ms, 1, 1_000), size=(self.size, 0, 1_400),
                     flood_per_ms=(self.flood_per_ms, 1, 1_000))  # fmt: skip
        if len(self.delays_ms) < 2 or sorted({*self.delays_ms}) != [*self.delays_ms]:
            raise ValueError("delays_ms: two at least, each longer than the one before")
        if not 0 <= self.delays_ms[0] <= self.delays_ms[-1] <= 1_000:
            raise ValueError("delays_ms: 0 to 1000")


class Held(msgspec.Struct, frozen=True):
    """What the receiver held at most in a run, in bytes that count in its budget."""

    delay_ms: int
    held: int
    delivered: int
    #: Packets that came without a window: none may.
    over_budget: int


class BufferResult(msgspec.Struct, frozen=True):
    """All runs."""

    runs: list[Held]
    flood: Held
    budget: int
    held_max: int
    over_budget: int
    #: How far a run is from the straight line through the first and the last one, at most, as a
    #: share of the last.
    bend: float

    @property
    def clean(self) -> bool:
        """Whether the receiver kept to its budget, and delivered."""
        all_runs = (*self.runs, self.flood)
        is_kept = self.held_max <= self.budget and not self.over_budget
        return is_kept and all(one.delivered for one in all_runs)


def measure_buffers(settings: BufferSettings, progress: Progress = lambda _: None) -> BufferResult:
    """Do all runs."""
    runs = []
    for number, delay_ms in enumerate(settings.delays_ms):
        runs.append(_run(settings, delay_ms, settings.per_ms))
        progress(number + 1)
    flood = _run(settings, settings.delays_ms[-1], settings.flood_per_ms)
    progress(len(runs) + 1)
    everything = (*runs, flood)
    return BufferResult(
        runs, flood, Shape().reorder_budget, max(one.held for one in everything),
        sum(one.over_budget for one in everything), round(bend(runs), 4),
    )  # fmt: skip


def bend(runs: list[Held]) -> float:
    """Return how far runs are from a straight line, as a share of what the last one held."""
    first, last = runs[0], runs[-1]
    slope = (last.held - first.held) / (last.delay_ms - first.delay_ms)
    away = (abs(one.held - first.held - slope * (one.delay_ms - first.delay_ms)) for one in runs)
    return max(away) / max(1, last.held)


def _run(settings: BufferSettings, delay_ms: int, per_ms: int) -> Held:
    """Send for a while, and return what the receiver held."""
    shape = Shape(racks=1, spines=0, processes=3, faults=Faults(delay=50_000, jitter=0),
                  is_calm=True, runs=True)  # fmt: skip
    world = World(1, shape)
    sender, receiver, late = world.hosts
    (switch,) = world.switches
    world.run(10 * T)
    for ms in range(1, delay_ms + 1):  # little by little: a link that is silent is fenced
        world.network.late[late, switch] = ms * _NS_PER_MS
        world.run(3 * T)
    counters = world.hosts[receiver].endpoint.counters
    payload = bytes(settings.size)
    before = 0
    for ms in range(_WARM_MS + delay_ms + _MEASURED_MS):
        if ms == _WARM_MS:
            before, counters.buffered_max = counters.delivered, 0
        many = [[(receiver, payload)] for _ in range(per_ms)]
        world.send_many(sender, Service.BEST_EFFORT, many)
        world.run(T)
    if not world.switches[switch].registers()[late].live:
        raise AssertionError(f"the link that is {delay_ms} ms late was fenced")
    if world.watch.broken:
        raise AssertionError(f"the world of delay {delay_ms} ms broke: {world.watch.broken[0]}")
    return Held(delay_ms, counters.buffered_max, counters.delivered - before, counters.over_budget)
