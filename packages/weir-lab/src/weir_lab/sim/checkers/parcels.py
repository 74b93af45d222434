"""Large values and delayed messages of the client that ships, as its programs observe them."""

from __future__ import annotations

from collections.abc import Iterator

from weir.testing.simulator.world import MS
from weir_lab.sim.history import History

#: Clocks, and what is due, count in milliseconds.
_ROUNDING = 2 * MS


class Delivered:
    """What was confirmed is delivered: whole, from one place, and not before its time."""

    name = "Delivered"

    def check(self, history: History) -> Iterator[str]:
        """Look at what became of each parcel."""
        if history.parcels is None:
            return
        for parcel in history.parcels.all.values():
            if parcel.wrong:
                yield f"{parcel.name} is not the value it was: {parcel.wrong}"
            known = parcel.places | ({parcel.place} if parcel.place is not None else set())
            if len(known) > 1:
                yield f"{parcel.name} is there more than once: {sorted(known)}"
            early = parcel.due - parcel.arrived
            if parcel.arrived >= 0 and early > _ROUNDING and not history.skewed:
                yield f"{parcel.name} was delivered {early // MS} ms before it was due"
            late = history.parcels.drained and parcel.arrived < 0
            if late and parcel.place is not None and not history.values_expire:
                yield f"{parcel.name} was confirmed at {parcel.place}, and never delivered"
