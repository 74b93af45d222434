"""Rules of consumer clusters that can be taken away."""

from __future__ import annotations

from weir.broker.consumers.grants import Grants
from weir.broker.records.control import MessagesGranted
from weir.broker.state.clusters import ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir_lab.sim.mutants.planting import Patch, mutant


@mutant(seed=0, breaks={"AckedOnce", "Live"})
def ack_forgotten(patch: Patch) -> None:
    """An acked message goes out again when its lease is over (counterexample 20)."""

    def ack(self: ClusterState, fence: int, first: int, behind: int) -> bool:
        grant = self.grants.get(fence)
        return grant is not None and grant.left.covers(first, behind)

    patch.setattr(ClusterState, "ack", ack)


@mutant(seed=0, breaks={"AckedOnce"})
def grant_past_an_ack_in_line(patch: Patch) -> None:
    """A grant that was proposed behind an ack is made as if that had not come (AckedOnce)."""
    honest = ClusterState.grant

    def grant(self: ClusterState, fence: int, record: MessagesGranted) -> Grant:
        made = honest(self, fence, record)
        whole = Ranges([(record.first, record.next)])
        if made is None:
            return Grant(record.consumer, record.deadline, 2, whole)
        made.left = whole
        return made

    patch.setattr(ClusterState, "grant", grant)


@mutant(seed=3, breaks={"Live", "AckedOnce"})
def a_cluster_stays_below_the_start(patch: Patch) -> None:
    """A cluster waits for ever for messages that are gone (DESIGN §5 Consume)."""
    patch.setattr(ClusterState, "drop_below", lambda self, start: None)


@mutant(seed=0, breaks={"AckedOnce", "Live"})
def grants_go_on_during_a_seek(patch: Patch) -> None:
    """A grant picked before a seek and committed behind it leaves a gap (DESIGN §5 Consume)."""
    honest = Grants.resume

    def resume(self: Grants, name: str, forget: bool) -> None:
        self._changing[name] += 1
        honest(self, name, forget)

    patch.setattr(Grants, "suspend", lambda self, name: None)
    patch.setattr(Grants, "resume", resume)


@mutant(seed=4, breaks={"AckedOnce", "Live"})
def a_seek_spares_old_grants(patch: Patch) -> None:
    """An ack of before a seek marks messages as done behind it (DESIGN §5 Consume)."""

    def seek(self: ClusterState, offset: int) -> None:
        self.cursor = self.frontier = offset
        self.done = Ranges()

    patch.setattr(ClusterState, "seek", seek)
