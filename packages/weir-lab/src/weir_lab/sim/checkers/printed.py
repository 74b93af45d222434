"""What commands of the command line printed, and what is promised of it: acked is handed over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir_lab.sim.history import History

#: A message: its partition and offset.
Place = tuple[int, int]


@dataclass(slots=True)
class Taken:
    """What one run of `weir sub` printed that somebody could read."""

    name: str
    #: So many are to be printed, and then it ends; 0: until it is told to end.
    count: int
    places: list[Place] = field(default_factory=list)
    #: Whether it came to its end by itself, and that is a success.
    ended: bool = False
    #: Whether that was once nothing befell anybody any more.
    calm: bool = False


@dataclass(slots=True)
class Printed:
    """The runs of `weir sub` for one cluster, in the order in which they began."""

    runs: list[Taken] = field(default_factory=list)
    #: Whether the cluster had nothing left to do in the end.
    drained: bool = False


class HandedOver:
    """What `weir sub` acked was printed: in the end each message was. One that ends after so many
    printed just those, and once all is calm, nobody prints them again.
    """

    name = "HandedOver"

    def check(self, history: History) -> Iterator[str]:
        """Compare what was printed with the log."""
        printed = history.printed
        if printed is None:
            return
        calm: dict[Place, str] = {}
        for run in printed.runs:
            for place in run.places:
                if place in calm:
                    yield f"{calm[place]} ended well with {place}, and {run.name} printed it again"
            if len(run.places) > (run.count or len(run.places)):
                yield f"{run.name} was to print {run.count}, and printed {len(run.places)}"
            if run.ended and len(run.places) != run.count:
                yield f"{run.name} ended well with {len(run.places)} of {run.count}"
            if run.ended and run.calm:
                calm.update(dict.fromkeys(run.places, run.name))
        there = {place for run in printed.runs for place in run.places}
        for partition, records in history.drained.items() if printed.drained else ():
            for record in records:
                for offset in range(record.offset, record.offset + len(record.values)):
                    if (partition, offset) not in there:
                        yield f"nobody printed {offset} of partition {partition}"
