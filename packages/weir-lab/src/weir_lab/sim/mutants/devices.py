"""Rules of devices that are replaced, which can be taken away."""

from __future__ import annotations

from weir.broker.devices.proofs import Proofs
from weir.broker.metadata.security.fleets import Device, Fleets
from weir.broker.records.fleets import DeviceReplaced
from weir.broker.state.dedupe import OriginTable
from weir.model.columns import boot_of
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.shape import NODE_REPLACED, SET_REPLACED


@mutant(seed=3, breaks={"OneOffset", "RealTime"}, shape=NODE_REPLACED)
def rows_hold_no_generation(patch: Patch) -> None:
    """A row says which boot of which generation it is of (ADR 0082 §1)."""
    honest = OriginTable.record

    def record(
        self: OriginTable, hub: int, sn: int, epoch: int, sequence: int, offset: int, hash: int
    ) -> None:
        honest(self, hub, sn, boot_of(epoch), sequence, offset, hash)

    patch.setattr(OriginTable, "record", record)


@mutant(seed=2, breaks={"Fenced"}, shape=NODE_REPLACED)
def a_secret_ends_before_the_next_is_used(patch: Patch) -> None:
    """The device before may come until the new one does (ADR 0082 §4)."""

    def replace_device(self: Fleets, record: DeviceReplaced) -> Device:
        return self._keep(record.hub, Device(record.generation))

    patch.setattr(Fleets, "replace_device", replace_device)


@mutant(seed=0, breaks={"Fenced"}, shape=SET_REPLACED)
def a_shard_refuses_what_it_has_not_heard_of(patch: Patch) -> None:
    """A proof of a generation that is not known yet waits for news (ADR 0083 §3)."""
    patch.setattr(Proofs, "is_ahead", lambda self, hub, generation: False)
