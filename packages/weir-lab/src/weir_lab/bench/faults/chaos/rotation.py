"""Rotates all that is secret in a set at work, and closes it, while its nodes are killed.

Each round renews the certificate of one node, gives it its next key file, and kills it (kill -9)
when its new private key is there, and its new certificate is not. Each three rounds are a step of
what concerns the whole set:

    step  the CA (three steps)         the wrapping key, node by node     the mode
    1     `prepare`: both are trusted  the new one is below the old one   open, then watch
    2     `switch`: the new one signs  the new one is at the top          closed
    3     `finish`: the old one goes   `rewrap`, then the old one goes    closed

so nine rounds rotate the CA and the wrapping key once, and lead from open to closed. The commands
of the operator are killed, too, and asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from weir.testing.nodes import Patient
from weir_lab.bench.faults.chaos.faults import Meanwhile, Span, killed
from weir_lab.bench.faults.chaos.secured import Operator, Secured

NODES = 3
_STEPS = 3
#: The step from which on the new CA signs.
_SWITCH = 2
#: Longer than it takes a node to look at its files.
_LOOK_S = 1.2


class Step(NamedTuple):
    """What a round does: to which node, which keys its file then has, and, where it begins a step
    of the set (1 to 3), which commands come before, and which behind.
    """

    node: int
    keys: tuple[int, ...]
    begins: int
    commands: tuple[tuple[str, ...], ...] = ()


def step_of(number: int) -> Step:
    """Return what round `number` does, from 0 on."""
    cycle, at = divmod(number, NODES * _STEPS)
    step, place = divmod(at, NODES)
    old, new = cycle, cycle + 1
    keys = ((old, new), (new, old), (new,))[step]
    if place:
        return Step(place + 1, keys, 0)
    commands: tuple[tuple[str, ...], ...] = (
        (("access", "mode", "open"), ("access", "mode", "watch"), ("cert", "rotate-ca", "prepare")),
        (("cert", "rotate-ca", "switch"), ("access", "mode", "closed")),
        (("cert", "rotate-ca", "finish"), ("access", "rewrap")),
    )[step]
    return Step(1, keys, step + 1, commands)


class Rotation:
    """Certificates, the CA and the wrapping key of a set, and its mode, under kill -9."""

    name = "rotate"
    witnessed = False
    settles = True
    drawn_s = 6.0

    def __init__(self, secured: Secured, operator: Operator, down_s: float) -> None:
        """Rotate these; a node that is killed is down for so long."""
        self.kills: list[Span] = []
        self._secured = secured
        self._operator = operator
        self._down_s = down_s
        self._rounds = 0
        self._done = dict.fromkeys(("certificates", "authorities", "wrapping_keys", "closed"), 0)

    @property
    def done(self) -> Mapping[str, int]:
        """How many certificates, CAs and keys were rotated, how often the set was closed, and how
        many commands were killed in their course.
        """
        return {**self._done, "commands_killed": self._operator.killed}

    def victim(self, leader: int, number: int) -> int:
        """Return each of the nodes in turn."""
        return (number - 1) % NODES + 1

    async def strike(self, victim: int, meanwhile: Meanwhile) -> None:
        """Take the next step, and kill in the middle of it. Raises `CommandFailed`."""
        secured, nodes = self._secured, self._secured.nodes
        step = step_of(self._rounds)
        await self._begin(step)
        await self._operator.change("cert", "renew", f"node-{step.node}")
        secured.write_keys(step.node, step.keys)
        secured.carry_key(step.node)
        await meanwhile(_LOOK_S)  # it goes on with what it has: the key is of no certificate
        self.kills.append(await asyncio.to_thread(killed, nodes, [step.node]))
        await asyncio.sleep(self._down_s)
        secured.carry_certificate(step.node)
        nodes.start_again([step.node])
        await asyncio.to_thread(nodes.wait, [step.node], Patient())
        self._rounds += 1
        self._done["certificates"] += 1
        self._done["wrapping_keys"] += step.node == NODES and len(step.keys) == 1

    async def _begin(self, step: Step) -> None:
        """Take a step of the whole set, if one begins here."""
        numbers = [one.node for one in self._secured.nodes.members]
        if step.begins == _SWITCH:
            # Nobody may be left that does not trust the new CA.
            for number in numbers:
                data = self._secured.nodes.folder / f"node-{number}"
                await self._operator.run("cert", "reload", "--data", str(data))
        for words in step.commands:
            await self._operator.change(*words)
        self._done["authorities"] += step.begins == _STEPS
        self._done["closed"] += step.begins == _SWITCH
        if step.begins and step.begins != _SWITCH:
            for number in numbers:
                self._secured.carry_bundle(number)
