"""The minima of `switch.p4`, whose statements are played here: no compiler for it is at hand."""

from __future__ import annotations

import random
import re

import pytest

from rigs.p4_program import Minima
from weir_toc.xdp import kernel

P4 = kernel.OBJECT.with_name("switch.p4").read_text()
ALL, UP, BLANK = 0xFF, 0x0F, 255
#: Just before the low 32 bits wrap.
NOW = 7 * (1 << 32) - 500_000


def started(now: int = NOW) -> Minima:
    """A switch whose registers all have one time."""
    switch = Minima(P4)
    halves = ("up_barrier", "up_commit", "down_barrier", "down_commit")
    inputs = [f"{kind}_{number}" for kind in ("barrier", "commit") for number in range(8)]
    switch.write(**dict.fromkeys((*halves, *inputs), now))
    return switch


def test_an_input_that_is_added_behind_takes_no_promise_back() -> None:
    switch = started()
    for number in range(7):
        switch.packet(number, 0, NOW + 1_000, NOW + 900, UP & 0b0111, UP & 0b0111)
    assert switch.packet(0, 0, NOW + 1_000, NOW + 900, 0b0111, 0b0111) == (NOW + 1_000, NOW + 900)
    # Input 3 counts from here on, and its register is that of the beginning.
    for lower in (0, 1):
        found = switch.packet(0, lower, NOW + 2_000, NOW + 1_900, 0b1111, 0b1111)
        assert found == (NOW + 1_000, NOW + 900)


def test_without_inputs_a_half_promises_the_time_of_blank_beacons_and_nothing_else() -> None:
    switch = started()
    assert switch.packet(0, 0, NOW + 90_000, NOW + 90_000, 0, 0) == (NOW, NOW)
    assert switch.packet(BLANK, 0, NOW + 50, 3, 0, 0) == (NOW + 50, NOW + 50)
    assert switch.packet(BLANK, 1, NOW + 70, 3, 0, 0) == (NOW + 70, NOW + 70)
    # The registers of inputs that do not count are no promise.
    assert switch.packet(4, 1, NOW + 5, NOW + 5, 0, 0) == (NOW + 70, NOW + 70)


@pytest.mark.parametrize("seed", range(20))
def test_minima_are_those_of_the_inputs_that_count(seed: int) -> None:
    dice, switch, now = random.Random(seed), started(), NOW
    inputs = {(kind, one): NOW for kind in ("live", "counts") for one in range(8)}
    passed = {(kind, half): NOW for kind in ("live", "counts") for half in ("up", "down")}
    masks = {"live": ALL, "counts": ALL}
    for _ in range(300):
        now += dice.randrange(20_000)
        if dice.random() < 0.1:
            masks = {kind: dice.choice((0, UP, ALL & ~UP, dice.randrange(256))) for kind in masks}
        input = dice.choice((*range(8), BLANK))
        told = {kind: now - dice.randrange(100_000) for kind in masks}
        if input == BLANK:
            told = {"live": now, "counts": 3}
        for kind, mask in masks.items():
            if input != BLANK:
                inputs[kind, input] = max(inputs[kind, input], told[kind])
            counted = [inputs[kind, one] for one in range(8) if mask >> one & 1]
            upper = [inputs[kind, one] for one in range(4) if mask >> one & 1]
            if upper or input == BLANK:
                passed[kind, "up"] = max(passed[kind, "up"], min(upper, default=now))
            down = min(passed[kind, "up"], *(counted[len(upper) :] or [passed[kind, "up"]]))
            passed[kind, "down"] = max(passed[kind, "down"], down)
        to_lower = dice.randrange(2)
        half = "down" if to_lower else "up"
        found = switch.packet(input, to_lower, told["live"], told["counts"], *masks.values())
        assert found == (passed["live", half], passed["counts", half])


def test_eight_inputs_have_registers_and_the_port_is_fixed() -> None:
    control = P4[P4.index("control Ingress(") :]
    assert re.findall(r"\bINPUT\((\d)\)", control) == [*"01234567"]
    assert re.findall(r"\bACCESS\((\d)\)", control) == [*"01234567"]
    assert re.findall(r"udp\.source = (\d+);", P4) == ["7100"]
    assert re.findall(r"(\d+): toc;", P4) == ["7100"]
