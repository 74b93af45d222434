"""Cables between the switches of a network on loopback: they are cut, known to be dead, and heal.

A switch of `lossy` loses what it is to send by a cable that is cut, and prints by which neighbours
it reaches nobody each time that the controller tells it routes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weir_lab.bench.toc.crew import Crew
from weir_toc.topology import switch_id


class Cable:
    """The cable between two switches of a crew, and the ways in which it is to be cut."""

    def __init__(
        self, made: Crew, ends: tuple[str, str], ways: Sequence[str], status: Mapping[str, Any]
    ) -> None:
        """`ways` are the ends that lose what they send; `status` is that of the leader, which
        knows the addresses of both.
        """
        self._made = made
        self._ends = ends
        self._ways = ways
        self._at = {
            one["switch"]: f"{one['host']}:{one['port']}" for one in status["switches"]
        }  # fmt: skip

    @property
    def victim(self) -> str:
        """The ends in words: from one to the other one, or both."""
        if len(self._ways) > 1:
            return " and ".join(self._ends)
        (way,) = self._ways
        return f"{way} to {self._beyond(way)}"

    def cut(self) -> None:
        """Let nothing pass from now on, in the ways of this cut."""
        for end in self._ways:
            self._made.tell(end, f"cut {self._at[switch_id(self._beyond(end))]}")

    def heal(self) -> None:
        """Let everything pass."""
        for end in self._ways:
            self._made.tell(end, "heal")

    def dead_at(self, since: int) -> int:
        """Return when the first end was told after `since` that nobody is reached by this cable,
        in nanoseconds; 0 if none was.
        """
        times = (at for end in self._ends for at, is_dead in self._told(end) if is_dead)
        return min((at for at in times if at >= since), default=0)

    @property
    def is_whole(self) -> bool:
        """Whether both ends were told at last that this cable leads to others."""
        last = ([False] + [is_dead for _, is_dead in self._told(end)] for end in self._ends)
        return not any(one[-1] for one in last)

    def _beyond(self, end: str) -> str:
        (other,) = {*self._ends} - {end}
        return other

    def _told(self, end: str) -> Iterator[tuple[int, bool]]:
        """Yield when an end was told routes, and whether they say that this cable is dead."""
        whole, _, _ = (self._made.folder / f"{end}.out").read_bytes().rpartition(b"\n")
        for line in whole.splitlines():
            at, dead = json.loads(line)
            yield at, switch_id(self._beyond(end)) in dead
