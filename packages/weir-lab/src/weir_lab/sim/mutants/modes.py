"""Rules of keyed and ordered clusters, and of delayed messages, that can be taken away."""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.consumers.modes import keyed
from weir.broker.consumers.modes.keyed import KeyedPicker
from weir.broker.consumers.modes.ordered import OrderedPicker
from weir.broker.consumers.modes.picker import ANYBODY, PullQueue
from weir.broker.consumers.modes.shared import SharedPicker
from weir.broker.state.clusters import ClusterState
from weir.broker.state.delays import Delays
from weir.broker.state.ranges import Ranges
from weir_lab.sim.mutants.planting import Patch, mutant


@mutant(seed=1, breaks={"KeyOrder"})
def keys_do_not_count(patch: Patch) -> None:
    """The messages of a key go to whoever pulls, as others do (DESIGN §5 Consume)."""

    def keys_of(first: int, validity: object, hashes: Sequence[int]) -> list[int]:
        return [-1 - first - i for i in range(len(hashes))]

    patch.setattr(keyed, "keys_of", keys_of)


@mutant(seed=41, breaks={"KeyOrder", "Leased", "HeldBack"})
def a_window_forgets_what_is_out(patch: Patch) -> None:
    """A new leader takes for free what an earlier one granted, and its key with it."""
    patch.setattr(KeyedPicker, "_out_in", lambda self, first, behind: Ranges())


@mutant(seed=4, breaks={"OrderedOnce"})
def a_standby_is_granted(patch: Patch) -> None:
    """Whoever pulls gets the next messages while the active one lives (DESIGN §5 Consume)."""

    def next_peer(self: OrderedPicker, queue: PullQueue) -> int:
        self._active_of(queue)
        return ANYBODY

    patch.setattr(OrderedPicker, "next_peer", next_peer)
    patch.setattr(ClusterState, "_is_next", lambda self, record: True)


@mutant(seed=10, breaks={"OrderedOnce"})
def late_acks_of_the_deposed_count(patch: Patch) -> None:
    """Who was followed by another can still ack what lies behind (counterexample 22)."""
    patch.setattr(ClusterState, "_depose", lambda self, first, counted=None: None)


@mutant(seed=13, breaks={"OrderedOnce"})
def a_grant_past_a_return_in_line(patch: Patch) -> None:
    """A grant that was proposed behind a nack is made as if that had not come."""
    patch.setattr(ClusterState, "_is_next", lambda self, record: True)


@mutant(seed=10, breaks={"NotBeforeDue"})
def a_snapshot_without_delays(patch: Patch) -> None:
    """After a restart nobody knows which messages are not due (DESIGN §5 Consume)."""
    honest = Delays.encode
    patch.setattr(Delays, "encode", lambda self: honest(Delays()))


@mutant(seed=5, breaks={"AckedOnce", "Live"})
def holes_are_forgotten(patch: Patch) -> None:
    """A new leader goes on behind what an earlier one passed by (counterexample 21)."""
    honest = SharedPicker.pick

    def pick(self: SharedPicker, *arguments: object) -> object:
        self._holes = None
        return honest(self, *arguments)  # type: ignore[arg-type]

    patch.setattr(SharedPicker, "pick", pick)
