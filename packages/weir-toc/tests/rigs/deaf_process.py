"""A process that beacons, and takes nothing that is sent to it."""

from __future__ import annotations

from collections.abc import Iterable

from weir_toc import sync
from weir_toc.packet import OVERHEAD_BYTES


def take_beacons_only(member: sync.Member) -> None:
    """Let a process lose all that comes for it but beacons, by the network and the controller."""
    endpoint = member._running.process._endpoint
    assert endpoint is not None
    receive = endpoint.receive_runs

    def beacons(now: int, runs: Iterable[tuple[bytes, int]]) -> None:
        receive(now, [one for one in runs if one[1] <= OVERHEAD_BYTES])

    endpoint.receive_runs = beacons  # type: ignore[assignment, method-assign]
    endpoint.forwarded = lambda *_: None  # type: ignore[method-assign]
