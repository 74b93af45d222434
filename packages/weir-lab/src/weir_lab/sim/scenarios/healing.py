"""Bit rot on one node of a set, when all is over: it takes from the others what it lost.

So nobody is refused anything, whichever of the others is down then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from weir.broker.metadata.placement import REPLICAS_DEFAULT
from weir.model.ids import REGISTRY_GROUP, node_of
from weir.testing.simulator.host import Host
from weir.testing.simulator.witness import groups_of
from weir.testing.simulator.world import SECOND
from weir_lab.sim import rot
from weir_lab.sim.programs.scene import Scene

_QUIET = 1 * SECOND
_WHOLE_WITHIN = 30 * SECOND
_READ_WITHIN = 20 * SECOND


class Healing:
    """Spoils one node's disks, and waits until it lacks nothing."""

    def __init__(self, scene: Scene, places: int) -> None:
        """Spoil so many places of the files of a node that is down."""
        self._scene = scene
        self._places = places

    def play(self) -> None:
        """Spoil, start, and see what the node has, and what clients are given."""
        scene, world, brokers = self._scene, self._scene.world, self._scene.brokers
        complaints = scene.history.complaints
        world.run(world.now + _WHOLE_WITHIN, self.can_miss_one)
        world.run(world.now + _QUIET)  # all is below the durable mark by then
        host, other = world.dice.sample(brokers.all, 2)
        host.die(power=False)
        spoilt = rot.names([rot.spoil(world, host.hardware.disks) for _ in range(self._places)])
        host.others_have_all = True
        host.start()
        world.run(world.now + _WHOLE_WITHIN, lambda: self.is_whole(host))
        if not self.is_whole(host):
            complaints.append(("Live", f"{spoilt} rotted on node {host.node}, and is not mended"))
            return
        other.die(power=True)
        survey = rot.Survey(scene)
        survey.start()
        world.run(world.now + _READ_WITHIN, lambda: survey.finished)
        if not survey.finished:
            complaints.append(("Live", f"{spoilt} rotted, and the rest could not be read"))
        survey.judge([])
        survey.retire()
        other.start()
        world.run(world.now + _WHOLE_WITHIN, lambda: self.is_whole(other))
        brokers.witness.compare(brokers.running)

    def can_miss_one(self) -> bool:
        """Return whether no group is on its way from two voters, when others were out of use."""
        running = self._scene.brokers.running
        there = [one.node.configuration for process in running for one in groups_of(process)]
        return all(len(half) > 2 for one in there for half in (one.voters, one.outgoing) if half)

    def is_whole(self, host: Host) -> bool:
        """Return whether a node has a part in each group that lies on it, and lacks nothing that
        anybody reads.
        """
        found = {one.id: one for process in host.running for one in groups_of(process)}
        # Of all nodes: one that is sent the registry anew knows for a while only where groups lay.
        running = self._scene.brokers.running
        catalogs = [one.shard.topics.catalog for one in running if one.shard is not None]
        # Of all topics: programs beside may have made theirs before the one that others use.
        for id in {REGISTRY_GROUP}.union(*(one.nodes.placements for one in catalogs)):
            placed = [one.voters(id) for one in catalogs]
            elsewhere = all(placed) and host.node not in map(node_of, chain(*placed))
            if elsewhere and id != REGISTRY_GROUP:  # of that each node has a copy
                continue
            group = found.get(id)
            if group is None or group.damage is not None or not group.is_current:
                return False
            # Old entries of the registry may be lost: their outcome is whole.
            if group.is_incomplete and id != REGISTRY_GROUP:
                return False
        return all(
            not catalog.nodes.unsettled and _belongs(host.node, id, catalog.voters(id))
            for catalog in catalogs
            for id in found
        )


def _belongs(node: int, group: int, voters: Sequence[int]) -> bool:
    """Return whether a node votes in a group, or learns of the registry, for which others do."""
    learns = group == REGISTRY_GROUP and len(voters) == REPLICAS_DEFAULT
    return learns or node in map(node_of, voters)
