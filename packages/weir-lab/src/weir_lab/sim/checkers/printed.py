"""What commands of the command line printed, and what is promised of it: acked is handed over."""

from __future__ import annotations

from collections.abc import Iterator

from weir_lab.sim.history import History
from weir_lab.sim.observations import Place


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
