"""The inside of a shard, for tests that watch or spoil what no client can."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, cast

from weir.broker.metadata.producer_ids import ProducerIds
from weir.broker.runtime.outbox import Waits
from weir.broker.scattering.coordinator import Scattering
from weir.broker.shard import Shard
from weir.broker.state.producers import ProducerTable
from weir_raft.groups.link import Link
from weir_raft.groups.multi import Multi

#: Methods that tests wrap, for `monkeypatch.setattr`.
TAKE_WAIT = Waits, "_take"
JUDGE_SCATTERING = Scattering, "_judge"


def link_of(multi: Multi, peer: int) -> Link:
    """Return the link to a peer that is up."""
    return multi._slots.links[peer]


def requests_of(shard: Shard) -> Any:
    """Return the table of requests."""
    return cast(Any, shard)._services.sessions._requests


def catalog_of(shard: Shard) -> Any:
    """Return what it knows of topics and nodes."""
    return cast(Any, shard)._services.sessions._requests._registry.catalog


def meter_of(shard: Shard) -> Any:
    """Return what counts the use of a shard's peers."""
    return cast(Any, shard)._services.meter


def restore_registry(shard: Shard, catalog: Any) -> None:
    """Let the registry hold what a snapshot holds."""
    cast(Any, shard)._services.sessions._requests._registry.restore(catalog)


def handled_by(requests: Any) -> Iterable[type]:
    """Return the kinds of requests that have a handler of their own."""
    return cast("dict[type, Any]", requests._handlers)


def sessions_of(shard: Shard) -> dict[int, Any]:
    """Return the sessions, by number."""
    return cast("dict[int, Any]", cast(Any, shard)._services.sessions._by_number)


def slowed_logins(shard: Shard) -> tuple[int, int]:
    """Return how many logins wait for failures, and how many times of such are kept."""
    logins = cast(Any, shard)._services.logins
    return logins.slowed, len(logins._slowed._due)


def unanswered(shard: Shard) -> dict[int, int]:
    """Return how many requests have no answer, by session."""
    return cast("dict[int, int]", cast(Any, shard)._runtime.outbox._open)


def welcomes_of(shard: Shard) -> Any:
    """Return the welcomes of devices that wait for a confirm."""
    return cast(Any, shard)._runtime.outbox._welcomes


def device_producer_of(shard: Shard) -> Any:
    """Return the producer id by which a shard publishes what devices send."""
    return cast(Any, shard)._partitions.context.device_producer


def be_stopping(shard: Shard) -> None:
    """Let a shard stop, and wait for nothing."""
    cast(Any, shard)._shutdown.is_under_way = True


def rounds_of(shard: Shard) -> Any:
    """Return the rounds of the coordinator of scatterings."""
    return cast(Any, shard)._services.coordinator._rounds


def answer_part(shard: Shard, caller: Any, answer: Any) -> None:
    """Answer the coordinator in the place of a partition."""
    cast(Any, shard)._partitions.context.reports.answer(caller, answer)


def note_leaders(shard: Shard) -> None:
    """Let a shard find out that other partitions are led here than were."""
    cast(Any, shard)._partitions.context.events.leads_changed += 1


def be_full(shard: Shard, needed_bytes: int, silent_until_ms: int) -> None:
    """Let a node's disk lack room, of which it does not tell by itself for so long."""
    inside = cast(Any, shard)._replication
    inside.peers._node_states._tell_ms = silent_until_ms
    inside.disks.needed_bytes = needed_bytes


def full_disks(shard: Shard) -> dict[int, int]:
    """Return how much room other nodes lack, as far as is known here."""
    return cast("dict[int, int]", cast(Any, shard)._replication.disks._full())


def forget_short_disks(shard: Shard) -> None:
    """Let all disks have room for a moment."""
    cast(Any, shard)._partitions.admission._short.clear()


def flying_of(batcher: Any) -> list[Any]:
    """Return the batches that a batcher has under way."""
    return list(batcher._flying)


def refill_of(shard: Shard) -> Any:
    """Return what fills in damaged replicas."""
    return cast(Any, shard)._replication.refill


def begin_anew(shard: Shard, group: int, voter: int) -> Any:
    """Open a group that a shard has left, as a voter with nothing."""
    inside = cast(Any, shard)
    inside._replication.peers.remove(group)
    shard.writers[0].forget(group)
    return inside._partitions.groups._open(group, voter, ())


def trunks_of(shard: Shard) -> Any:
    """Return the trunks to other shards."""
    return cast(Any, shard)._cluster.trunks


def auditor_of(shard: Shard) -> Any:
    """Return what publishes to the audit topic."""
    return shard._services.auditor


def forwarder_of(shard: Shard) -> Any:
    """Return what forwards requests to other shards."""
    return trunks_of(shard).forwarder


def scrub_now(scrubber: Any) -> None:
    """Let a scrubber begin, though its node has just started."""
    scrubber._due_ms = 0


def is_done(cluster: Any, first: int, behind: int) -> bool:
    """Whether a cluster is done with all of these offsets."""
    return bool(cluster._is_done(first, behind))


def producers_of(catalog: Any) -> set[int]:
    """Return the producer ids that a registry knows."""
    return set(catalog._ids)


def deadlines_of(waiting: Any) -> list[Any]:
    """Return the deadlines that are kept, also of those that are over."""
    return list(waiting._due)


def subscriptions_of(shard: Shard) -> Any:
    """Return the streams of marks that it has opened at others."""
    return cast(Any, shard)._services.orders._answers._subscriptions


def mark_streams_of(shard: Shard) -> Any:
    """Return the streams of marks that others have opened here."""
    return cast(Any, shard)._services.orders._answers.streams


def streams_to(subscriptions: Any) -> dict[int, int]:
    """Return the place of each stream that is open, by its number."""
    return {number: one.place for number, one in subscriptions._numbered.items()}


def places_without_streams(subscriptions: Any) -> set[int]:
    """Return the places that are known not to have streams."""
    return set(subscriptions._plain)


def waits_for_nobody(grants: Any) -> bool:
    """Whether no consumer waits, and none is known."""
    return not grants._queues and not any(grants._members.values())


def doubtful_of(grants: Any) -> list[Any]:
    """Return the grants of which it is not known whether they were taken."""
    return list(grants._context.doubtful)


def wait_in(times: Any, cluster: str, delayed: Any) -> None:
    """Let a cluster's delayed messages be awaited."""
    times._delayed[cluster] = delayed


def alarm_bytes(times: Any) -> int:
    """Return what alarms take in memory."""
    return sys.getsizeof(times._alarms) + sum(map(sys.getsizeof, times._alarms))


def row_bytes(delays: Any) -> int:
    """Return what the rows of delayed messages take in memory."""
    return sum(map(sys.getsizeof, delays._columns))


def range_bytes(ranges: Any) -> int:
    """Return what ranges take in memory."""
    parts = [ranges._bases, ranges._blocks, *ranges._bases, *ranges._blocks]
    return sum(map(sys.getsizeof, parts))


def most_in_a_part(table: ProducerTable) -> int:
    """Return how many rows the largest part of a table of producers has."""
    parts = [part.rows for part in table._parts.values()]
    return max(map(len, [*table._stripes.values(), *parts]))


def bytes_of_ids(ids: ProducerIds) -> list[int]:
    """Return what each chunk of a registry's producer ids takes."""
    return [sum(len(column) * column.itemsize for column in chunk) for chunk in ids._chunks]


def stripes_of(table: Any) -> list[Any]:
    """Return the stripes of a table of origins, or of producers."""
    return list(table._stripes.values())


def located_in(shard: Shard) -> int:
    """How many look for offsets of partitions."""
    return len(cast(Any, shard)._services.orders._cuts.locator.locations)
