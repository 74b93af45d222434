"""What a log must know in the end, from a plain list of what was appended to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from weir.storage.format.frame import Kind
from weir.storage.format.record import HardState, Installed, Record


@dataclass(frozen=True)
class Begun:
    """Where a group began anew: with a snapshot, or after it was dropped (that of entry 0)."""

    group: int
    end: int
    base: int
    state: Installed
    hard_state: HardState | None


@dataclass
class Life:
    """One group as the list of what was appended tells it: the positions of its entries by index,
    where it began anew, its last hard state.
    """

    entries: dict[int, int] = field(default_factory=dict)
    begun: tuple[int, Begun] | None = None
    hard_state: HardState | None = None


#: By position, what was appended.
Appended = dict[int, "tuple[Record, bytes] | Begun"]


def lives(appended: Appended, floors: dict[int, int]) -> dict[int, Life]:
    """Return what counts in the end of all that was appended, by group, each from its floor on."""
    found: dict[int, Life] = {}
    for position in sorted(appended):
        item = appended[position]
        if isinstance(item, Begun):
            if position >= floors.get(item.group, 0):
                found[item.group] = Life({}, (position, item), item.hard_state)
            continue
        record, payload = item
        if position < floors.get(record.group, 0):
            continue
        life = found.setdefault(record.group, Life())
        if record.kind is Kind.HARD_STATE:
            life.hard_state = HardState.unpack(payload)
            continue
        for index in [i for i in life.entries if i >= record.index]:
            del life.entries[index]
        life.entries[record.index] = position
    return found
