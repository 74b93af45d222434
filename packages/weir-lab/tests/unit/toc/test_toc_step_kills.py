"""While a failure is handled, in each of its seven steps, another part dies: no promise breaks.

The steps are those of docs/PACKETS.md: a silent input is reported, the failure stamp is decided,
processes are told, they discard, they recall, they answer, and registers are taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from random import Random

import pytest

from rigs.drawn_mutants import some_of
from weir_lab.toc.checkers import violations
from weir_lab.toc.network import Faults, Sent
from weir_lab.toc.rest import is_settled
from weir_lab.toc.world import Shape, T, World
from weir_toc import packet as wire
from weir_toc.controller.entries import (
    Command,
    Completed,
    Decide,
    Entry,
    Fail,
    InputSilent,
    Remove,
)
from weir_toc.endpoint.events import Service

STEPS = ("detect", "determine", "broadcast", "discard", "recall", "callback", "resume")
VICTIMS = ("process", "switch", "leader")
SEEDS = range(4)
#: A world ends once nothing was open for so long, or after so long, in intervals.
QUIET, QUIET_MAX = 14, 1_500
#: For so long nobody leads, in intervals.
LEADERLESS = 25


class Stepped(World):
    """A world that strikes once, when the failure of a process has come to one of its steps.

    A leader that dies loses its commands which are under way, and what it has not decided. Reports
    are repeated until the next one leads, which repeats all commands that are not carried out.
    """

    def __init__(self, seed: int, step: str, strike: Callable[[Stepped], None]) -> None:
        self._step, self._strike = step, strike
        self.has_struck = False
        #: Whether a failure has begun that is waited for: none before counts.
        self.is_armed = False
        self._leads_at = 0
        faults = Faults(loss=0.02 * (seed % 2), delay=50_000, jitter=200_000)
        super().__init__(seed, Shape(3, 1 + seed % 2, 0, 5, faults))

    def kill_leader(self) -> None:
        self.control.term += 1
        self._leads_at = self.network.now + LEADERLESS * T
        self.network.at(self._leads_at, self._lead)

    def _lead(self) -> None:
        super()._lead()
        if self.controller.is_undecided and not self.control.is_deciding:
            self._decide()

    def _comes_to(self, step: str) -> None:
        if self.is_armed and step == self._step and not self.has_struck:
            self.has_struck = True
            self._strike(self)

    def _control(self, entry: Entry) -> None:
        if self.network.now < self._leads_at:
            self.network.at(self._leads_at, partial(self._control, entry))
            return
        super()._control(entry)
        if isinstance(entry, InputSilent):
            self._comes_to("detect")
        elif isinstance(entry, Completed):
            self._comes_to("callback")
        elif isinstance(entry, Decide) and self.controller.failures:
            self._comes_to("broadcast")

    def _decide(self) -> None:
        self._comes_to("determine")
        if self.network.now < self._leads_at:
            self.control.is_deciding = False  # the next leader does
        else:
            super()._decide()

    def _arrived(self, term: int, command: Command) -> None:
        if term != self.control.term:  # it was lost with its leader
            self.control.under_way -= 1
            return
        super()._arrived(term, command)
        if isinstance(command, Remove):
            self._comes_to("resume")
        elif isinstance(command, Fail):
            self._comes_to("discard")

    def _send_all(self, source: int, sent: Sequence[Sent]) -> None:
        super()._send_all(source, sent)
        if source in self.hosts and any(data[22] == wire.RECALL for _, data, _ in sent):
            self._comes_to("recall")


def struck(victim: str, random: Random, world: Stepped) -> None:
    """Let a part die: a process, a switch, or the controller's leader."""
    living = [one for one, host in world.hosts.items() if host.alive]
    if victim == "process":
        world.crash(random.choice(living))
    elif victim == "switch":
        world.crash(random.choice([*world.switches]))
    else:
        world.kill_leader()


def sends(world: Stepped, random: Random, intervals: int) -> None:
    """Let all that live send to some others, itself included, while time passes."""
    for _ in range(intervals):
        for process in [*world.hosts]:
            to = random.sample([*world.hosts], random.randint(1, len(world.hosts)))
            service = random.choice((Service.RELIABLE, Service.RELIABLE, Service.BEST_EFFORT))
            world.send(process, service, [(one, random.randbytes(40)) for one in to])
        world.run(T)


@pytest.mark.parametrize(("step", "victim"), some_of(9, *product(STEPS, VICTIMS)))
def test_a_part_dies_in_a_step_of_a_failure(step: str, victim: str) -> None:
    found = {}
    for seed in SEEDS:
        random = Random(f"{step} {victim} {seed}")
        world = Stepped(seed, step, partial(struck, victim, random))
        world.run(4 * T)
        sends(world, random, 4)
        world.is_armed = True
        first = random.choice([*world.hosts])
        world.crash(first)
        sends(world, random, 40)
        world.network.faults = Faults(delay=50_000)
        quiet = 0
        for _ in range(QUIET_MAX):
            world.run(T)
            quiet = quiet + 1 if is_settled(world) else 0
            if quiet >= QUIET:
                break
        assert world.has_struck
        if victim == "leader":  # the next one repeats what nodes have missed, and nobody else fails
            assert world.controller.failed.keys() == {first}
        else:
            assert first in world.controller.failed
        if broken := violations(world):
            found[seed] = broken
    assert not found
