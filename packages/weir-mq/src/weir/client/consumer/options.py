"""How a consumer pulls and settles: what `Client.consumer` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weir.client.consumer.acknowledgements import Stale
from weir.client.core.durations import seconds
from weir.errors import BadRequest
from weir.model.clusters import Mode
from weir.model.limits import FETCH_BYTES_MAX, GRANT_MS_MAX, VALUE_BYTES_LOADED_MAX
from weir.model.topic import check_name

_MODES = {mode.name.lower(): mode for mode in Mode}


def lease_seconds(lease: str | float) -> float:
    """Return a lease in seconds. Raises `BadRequest` for one that is no lease."""
    found = seconds(lease)
    if not 1 <= found * 1_000 <= GRANT_MS_MAX:
        raise BadRequest(f"lease={lease!r}: give 1 ms to {GRANT_MS_MAX // 1_000:,} s")
    return found


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """See `Client.consumer`."""

    cluster: str
    max_messages: int
    max_bytes: int
    lease: str | float
    ack_within: str | float
    on_stale: Callable[[Stale], None] | None = None
    #: A larger value, which lies in chunks, is not loaded: its message streams it.
    value_bytes_max: int = VALUE_BYTES_LOADED_MAX
    mode: str = "shared"
    extend: bool = False

    @property
    def number(self) -> Mode:
        """The mode as the wire has it."""
        return _MODES[self.mode]

    def check(self) -> None:
        """Raise `BadRequest` or `BadName` for options that cannot work."""
        if not isinstance(self.cluster, str):
            raise TypeError(f"cluster={self.cluster!r}: name the cluster that shares the messages")
        check_name(self.cluster, "cluster")
        if not 1 <= self.max_bytes <= FETCH_BYTES_MAX or self.max_messages < 1:
            raise BadRequest(f"give 1 to {FETCH_BYTES_MAX:,} max_bytes, at least 1 max_messages")
        lease_seconds(self.lease)
        if self.mode not in _MODES:
            raise BadRequest(f'mode={self.mode!r}: give "shared", "keyed" or "ordered"')
