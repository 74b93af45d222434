"""What `weir doctor` says of a core set that was promoted, or may be: one line per way to fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weir.cli.doctor.finding import Finding, Patient, running
from weir.cli.output import counted
from weir.errors import NotAuthenticated, Unavailable, UnknownOpcode, WeirError
from weir.model.ids import REGISTRY_GROUP, partition_of

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.protocol.client.topology import CopyList, CopyRow, TopologyState

_SHOWN_MAX = 5


def promotion(patient: Patient) -> Finding:
    """Ask the node that runs on the folder whether a set was promoted, and what is left to do."""
    from weir.cli.connection import connected

    node = running(patient)
    if node is None:
        return Finding("promotion", "ok", f"no node runs on {patient.folder}")
    try:
        copies, topology = connected(node[0], _ask)
    except NotAuthenticated:
        raise
    except UnknownOpcode:
        return Finding("promotion", "ok", "the node's release promotes no sets")
    except WeirError as error:
        if (found := left_behind(error)) is not None:
            return found
        raise
    return judge_promotion(copies, topology)


def left_behind(error: WeirError) -> Finding | None:
    """Return what is to be done about a node which refuses all by this error since another set was
    promoted without it; None if that is not why.
    """
    from weir.broker.metadata.security.cutoff import LEFT_BEHIND

    if LEFT_BEHIND not in str(error):
        return None
    return Finding(
        "promotion", "fail", str(error),
        "stop this node and keep its folder: weir inspect and weir backup read what was not copied "
        "there. Found another one in an empty folder (weir node add), and connect programs to the "
        "set that was promoted",
    )  # fmt: skip


async def _ask(client: Client) -> tuple[CopyList, TopologyState | None]:
    copies = await client.topology.describe_copies()
    if not copies.promoted:
        return copies, None
    try:
        return copies, await client.topology.describe()
    except Unavailable:
        return copies, None  # the copies say that nobody leads the registry


def judge_promotion(copies: CopyList, topology: TopologyState | None) -> Finding:
    """Return what is to be mended first; `topology` is that of a set that was promoted."""
    name = copies.name or str(copies.brokerset)
    registry = next((row for row in copies.rows if row.group == REGISTRY_GROUP), None)
    if registry is not None and max(registry.lineage, registry.begun) > copies.promoted:
        return Finding(
            "promotion", "fail", f"the promotion of set {name} was begun, and is not finished",
            f"weir topology promote {name}, once more: it goes on where it stopped",
        )  # fmt: skip
    if copies.promoted:
        return _promoted(copies, topology, name)
    if copies.home in (-1, copies.brokerset):
        return Finding("promotion", "ok", "no set was promoted")
    if registry is not None and not registry.leader:
        silent = f", which was last heard of {registry.heard_ms / 1_000:,.0f} s ago"
        return Finding(
            "promotion", "fail",
            f"the metadata has no leader in set {copies.home}, the home of all voters"
            + (silent if registry.heard_ms >= 0 else ""),
            "start its nodes, or mend the network to them. If they are lost for good: weir "
            f"topology promote {name} --dry-run tells what would be lost with them",
        )  # fmt: skip
    if copies.absent:
        named = _named([(topic, partition_of(group)) for group, topic in copies.absent])
        return Finding(
            "promotion", "warn", f"partitions without a copy in set {name}: {named}",
            f"they would be empty if set {name} were promoted. weir node status shows whether "
            "copies are under way; else give the set more nodes, or activate drained ones",
        )  # fmt: skip
    return Finding("promotion", "ok", f"set {name} has a copy of all, and was not promoted")


def _promoted(copies: CopyList, topology: TopologyState | None, name: str) -> Finding:
    if waiting := [row for row in copies.rows if not row.leader]:
        named = _named([(row.topic, _partition(row)) for row in waiting])
        return Finding(
            "promotion", "fail", f"without a leader in lineage {copies.promoted}: {named}",
            f"weir topology promote {name}, once more; with --without NODE if a node that has "
            "copies is lost as well (weir node status)",
        )  # fmt: skip
    home = copies.home if copies.home >= 0 else copies.brokerset
    if topology is not None and topology.version and topology.topology.home != home:
        return Finding(
            "promotion", "warn",
            f"set {home} is home since it was promoted, and the topology says set "
            f"{topology.topology.home}",
            "the next topology that is applied counts: write home as it is to be into it, and weir "
            "topology apply, before somebody applies the old one",
        )  # fmt: skip
    later = sum(row.begun > 0 for row in copies.rows if row.group != REGISTRY_GROUP)
    partitions = counted(later, "partition")
    return Finding("promotion", "ok", f"{partitions} here in a later lineage, each with a leader")


def _partition(row: CopyRow) -> int:
    return -1 if row.group == REGISTRY_GROUP else partition_of(row.group)


def _named(partitions: Sequence[tuple[str, int]]) -> str:
    """Return partitions as TOPIC/PARTITION, the registry as what it is."""
    names = [f"{topic}/{number}" if number >= 0 else "the metadata" for topic, number in partitions]
    more = len(names) - _SHOWN_MAX
    return ", ".join(names[:_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")
