"""What a lease promises: nobody else gets a message before it is over (DESIGN §5 Consume)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from weir.testing.simulator.world import MS
from weir_lab.sim.checkers.seeking import sought
from weir_lab.sim.history import Ack, Grant, History, Return


class Leased:
    """What was granted goes to nobody else before its lease, or what extended it, is over; unless
    it is given back, or its consumer goes.

    Only where it is known when a consumer is gone, and what a lease is: in a run of one shard whose
    clock nobody pushes about.
    """

    name = "Leased"

    def check(self, history: History) -> Iterator[str]:
        """Compare each grant of a message with the one before it, and each ack with its own."""
        if history.skewed:
            return
        returned = {(r.partition, r.cluster, r.fence, o) for r in history.returns for o in r.span}
        yield from _lost(history, returned)
        yield from _not_extended(history, returned)
        for (partition, cluster), grants in _by_place(history).items():
            latest: dict[int, Grant] = {}
            for grant in sorted(grants, key=lambda one: one.fence):
                for offset in range(grant.first, grant.behind):
                    before, latest[offset] = latest.get(offset), grant
                    if before is None or (partition, cluster, before.fence, offset) in returned:
                        continue
                    until = _until(history, before)
                    gone = 0 <= before.gone <= grant.arrived
                    early = grant.arrived < until and not gone
                    if early and not sought(history, before, grant.arrived):
                        yield (
                            f"{offset} is leased under {before.fence} until {until // MS} ms: "
                            f"at {grant.arrived // MS} ms it is granted under {grant.fence}"
                        )


def _lost(history: History, returned: set[tuple[int, str, int, int]]) -> Iterator[str]:
    """Find what was taken from who held it, and wanted to be done with it."""
    grants = {(g.partition, g.cluster, g.fence): g for g in history.grants}
    for ack in history.acks:
        grant = grants.get((ack.partition, ack.cluster, ack.fence))
        if ack.stale < 0 or grant is None or 0 <= grant.gone <= ack.stale:
            continue
        place = (ack.partition, ack.cluster, ack.fence)
        if any((*place, offset) in returned for offset in range(ack.first, ack.behind)):
            continue
        until = _until(history, grant)
        if ack.stale < until and not sought(history, grant, ack.stale):
            yield (
                f"[{ack.first}, {ack.behind}) is leased under {ack.fence} until {until // MS} ms: "
                f"at {ack.stale // MS} ms it is another's"
            )


def _not_extended(history: History, returned: set[tuple[int, str, int, int]]) -> Iterator[str]:
    """Find what was taken from who held it, and wanted to keep it longer."""
    grants = {(g.partition, g.cluster, g.fence): g for g in history.grants}
    for extension in history.extensions:
        place = (extension.partition, extension.cluster, extension.fence)
        grant = grants.get(place)
        if extension.stale < 0 or grant is None or 0 <= grant.gone <= extension.stale:
            continue
        # It is over once nothing is left of it, and may be if an ack of that is on its way.
        acks = [a for a in history.acks if (a.partition, a.cluster, a.fence) == place]
        first = max(grant.first, history.starts.get(grant.partition, 0))
        held = [
            offset
            for offset in range(first, grant.behind)
            if (*place, offset) not in returned
            and not any(a.first <= offset < a.behind and a.sent <= extension.stale for a in acks)
        ]
        until = _until(history, grant)
        if held and extension.stale < until and not sought(history, grant, extension.stale):
            yield (
                f"{held[0]} is leased under {grant.fence} until {until // MS} ms: at "
                f"{extension.stale // MS} ms that is over, and cannot be extended"
            )


class HeldBack:
    """What was given back with a delay is granted to nobody before that is over.

    Where it was another's for a while before the broker heard of it, the delay began behind that.
    """

    name = "HeldBack"

    def check(self, history: History) -> Iterator[str]:
        """Compare what is confirmed with the later grants."""
        if history.skewed:
            return  # a new leader goes by its clock
        places = _by_place(history)
        acks: dict[tuple[int, str], list[Ack]] = defaultdict(list)
        for ack in history.acks:
            acks[ack.partition, ack.cluster].append(ack)
        for one in history.returns:
            if one.confirmed < 0 or not one.delay_ms:
                continue
            place = (one.partition, one.cluster)
            until, start = one.sent + one.delay_ms * MS, history.starts.get(one.partition, 0)
            for grant in places.get(place, ()):
                shared = [o for o in one.span if grant.first <= o < grant.behind and o >= start]
                # A broker counts whole milliseconds: that in which the delay ends is over for it.
                is_before = one.sent <= grant.arrived and grant.arrived // MS < until // MS
                early = is_before and grant.fence > one.fence
                if not early or sought(history, one, grant.arrived):
                    continue
                if _was_over(history, grant, one.confirmed):
                    continue
                if left := [o for o in shared if not _done_before(o, one, acks[place])]:
                    yield (
                        f"{left[0]} is held back until {until // MS} ms: at "
                        f"{grant.arrived // MS} ms it is granted under {grant.fence}"
                    )


def _was_over(history: History, grant: Grant, by: int) -> bool:
    """Whether a grant may have come to its end by then: its consumer had gone, or its lease."""
    return 0 <= grant.gone <= by or 0 < _until(history, grant) <= by


def _by_place(history: History) -> dict[tuple[int, str], list[Grant]]:
    places: dict[tuple[int, str], list[Grant]] = defaultdict(list)
    for grant in history.grants:
        places[grant.partition, grant.cluster].append(grant)
    return places


def _until(history: History, grant: Grant) -> int:
    """Return until when a grant lasts at least; a time long ago if that is not known."""
    if not grant.lease_ms:
        return 0
    until = grant.pulled + grant.lease_ms * MS
    for extension in history.extensions:
        same = (extension.partition, extension.cluster) == (grant.partition, grant.cluster)
        if same and extension.fence == grant.fence and extension.confirmed >= 0:
            until = max(until, extension.sent + extension.lease_ms * MS)
    return until


def _done_before(offset: int, one: Return, acks: list[Ack]) -> bool:
    """Whether a message may have been done when it was given back, under a later grant: a message
    that is done is confirmed, whichever consumer gives it back.
    """
    return any(a.first <= offset < a.behind and a.sent <= one.confirmed for a in acks)
