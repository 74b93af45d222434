"""That a partition's log rises: offsets, stamps, and each producer's sequence (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from weir.model.columns import NO_SEQUENCE
from weir_lab.sim.history import History


class RisingStamps:
    """In a partition, offset order is stamp order, and a producer's sequence order."""

    name = "RisingStamps"

    def check(self, history: History) -> Iterator[str]:
        """Walk the drained log once: no hole, no falling stamp, no sequence left out."""
        unseen = {(p.producer, p.sequence) for p in history.publishes if not p.values}
        for partition, records in history.drained.items():
            expected: dict[tuple[object, ...], int] = {}
            from_zero = not history.starts.get(partition, 0)
            for before, after in pairwise(records):
                behind = before.offset + len(before.values)
                left_out = history.is_void(partition, behind, after.offset)
                if after.offset != behind and not left_out:
                    yield f"partition {partition}: offset {after.offset} follows {behind - 1}"
                if after.stamp <= before.stamp:
                    yield f"partition {partition}: the stamp falls at offset {after.offset}"
            for record in records:
                for producer, sequence in record.rows:
                    if sequence == NO_SEQUENCE:
                        continue
                    # A producer's first messages may be past retention.
                    wanted = expected.get(producer, 0 if from_zero else sequence)
                    while (producer, wanted) in unseen and wanted < sequence:
                        wanted += 1
                    if sequence != wanted:
                        yield f"{producer}: {sequence} where {wanted} belongs"
                    expected[producer] = sequence + 1
