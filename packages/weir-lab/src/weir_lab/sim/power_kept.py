"""Results of `weir sim power` in a file, so that a measurement of hours can be gone on with."""

from __future__ import annotations

from pathlib import Path

import msgspec

from weir_lab.sim.power import Power


class _Line(msgspec.Struct, frozen=True):
    """What was measured on some code, and how."""

    code: str
    worlds: int
    enough: int
    power: Power


def read(path: Path) -> list[Power]:
    """Return the latest result of each bug in a file, whatever code it was measured on."""
    return [*{line.power.name: line.power for line in _lines(path)}.values()]


def _lines(path: Path) -> list[_Line]:
    return [msgspec.json.decode(text, type=_Line) for text in path.read_bytes().splitlines()]


class Kept:
    """What a file holds that was measured on this very code in the same way."""

    def __init__(self, path: Path | None, code: str, worlds: int, enough: int) -> None:
        """Read the file, if it is there; without a path nothing is kept."""
        self._path = path
        self._code = code
        self._worlds = worlds
        self._enough = enough
        #: By the names of the bugs.
        self.known: dict[str, Power] = {}
        mine = (code, worlds, enough)
        for line in _lines(path) if path is not None and path.exists() else ():
            if (line.code, line.worlds, line.enough) == mine:
                self.known[line.power.name] = line.power

    def add(self, power: Power) -> None:
        """Write a result down at once."""
        if self._path is not None:
            line = _Line(self._code, self._worlds, self._enough, power)
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
