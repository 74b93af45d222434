"""Rules of what joins the shards of a node that can be taken away."""

from __future__ import annotations

from weir.broker.api.settings import Layout
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.forwarding.trunks import ShardTrunks
from weir.model.ids import partition_of, topic_of
from weir.testing.simulator.world import MS
from weir_lab.sim.mutants.planting import Patch, bug, mutant
from weir_lab.sim.shape import Shape

_SUPERVISION = "weir.host.supervision"

#: Faults end early, so that no later one hides what a broken trunk left open.
BRIEF = Shape(
    faults_until=400 * MS, fault_every=(100 * MS, 200 * MS), producers=4, batches=40, rots=(0,)
)


@mutant(seed=0, breaks={"Durable", "Live"})
def groups_move_with_the_number_of_shards(patch: Patch) -> None:
    """The log of a group hangs on how many shards there are today (ADR 0009 §1)."""

    def log_of(self: Layout, group: int) -> int:
        return (topic_of(group) + partition_of(group)) % self.shards

    patch.setattr(Layout, "log_of", log_of)


@mutant(seed=1, breaks={"Live"}, shape=BRIEF)
def a_broken_trunk_is_nobodys_business(patch: Patch) -> None:
    """What was passed on through a trunk that broke is never answered (ADR 0009 §3)."""
    patch.setattr(Forwarder, "closed", lambda self, shard: self._trunks.pop(shard, None))


@mutant(seed=9, breaks={"Durable", "Live", "Honest", "OneOffset"})
def what_a_copy_lacks_does_not_exist(patch: Patch) -> None:
    """A shard takes its copy of the registry for the whole truth (ADR 0009 §4)."""
    patch.setattr(ShardTrunks, "may_be_news", lambda self: False)
    patch.setattr(ShardTrunks, "certain", lambda self, error: error)


@bug(breaks={"Live"})
def who_is_started_again_is_joined_by_half(patch: Patch) -> None:
    """A new process is joined with all others, both ways."""
    patch.source(
        _SUPERVISION,
        "found += TrunkJoin(member.shard, other.shard), TrunkJoin(other.shard, member.shard)",
        "found.append(TrunkJoin(member.shard, other.shard))",
    )
