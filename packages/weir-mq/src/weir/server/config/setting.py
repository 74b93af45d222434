"""One setting as `weir.server.config.sections` declares it, and which values it may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as the sections declare it. `unit` is "MiB", "s" and the like, or empty."""

    section: str
    name: str
    type: Any
    default: Any
    about: str = ""
    unit: str = ""
    least: float | None = None
    most: float | None = None
    #: The texts that it may be, where it may not be any.
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name with its section, as in `node.port`."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"WEIR__{self.section}__{self.name}".upper()

    @property
    def bounds(self) -> str:
        """The numbers between which a value must lie, as people read them; empty without."""
        if self.least is None or self.most is None:
            return ""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.least:g} to {_whole(self.most)}{unit}"

    def problem(self, value: Any) -> str:
        """Return what is wrong with a value, or nothing."""
        if wanted := self._other_kind(value):
            return f"{self.key} is {value!r}: write {wanted}"
        if self.bounds and isinstance(value, int | float) and not isinstance(value, bool):
            assert self.least is not None
            assert self.most is not None
            if not self.least <= value <= self.most:
                return f"{self.key} is {value}: it must be {self.bounds}"
        if value == "" and self.default != "":
            return f"{self.key} must not be empty: leave it out for {self.default!r}"
        try:
            msgspec.convert(value, self.type)
        except msgspec.ValidationError as error:
            return f"{self.key} is {value!r}: {str(error)[:1].lower()}{str(error)[1:]}"
        return ""

    def _other_kind(self, value: Any) -> str:
        """Return what to write where a value is not of the setting's kind, or no choice of it."""
        if self.choices:
            return "" if value in self.choices else " or ".join(self.choices)
        kind = type(self.default)
        if kind is str and not isinstance(value, str):
            return "it as text, in quotes"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if kind in (int, float) and not number:
            return "a number"
        if kind is int and not isinstance(value, int):
            return f"a whole number of {self.unit}" if self.unit else "a whole number"
        return ""


def _whole(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)
