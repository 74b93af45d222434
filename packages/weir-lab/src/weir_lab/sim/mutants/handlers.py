"""Rules of handlers and their inbox that can be taken away."""

from __future__ import annotations

from dataclasses import replace

from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.shape import NODE_HANDLERS

#: One node, and handlers beside clients that consume in turns.
SHAPE = replace(NODE_HANDLERS, takers=(0,), scatterers=(0,), rots=(0,), retentions=(0,))


@mutant(seed=3, breaks={"EffectOnce"}, shape=SHAPE)
def a_message_is_acked_before_its_effect(patch: Patch) -> None:
    """A message is done once its handler has returned, and no sooner."""
    patch.source(
        "weir.app.dispatcher",
        "await self._work(unit.message)",
        "unit.done(); await self._work(unit.message)",
    )


@mutant(seed=3, breaks={"EffectOnce"}, shape=SHAPE)
def an_inbox_does_not_look_for_its_row(patch: Patch) -> None:
    """Whoever finds a message's row in the inbox has nothing to do."""
    patch.source(
        "weir.app.inbox",
        "return session.execute(statement, message).first() is not None",
        "session.execute(statement, message); return True",
    )


@mutant(seed=0, breaks={"EffectOnce"}, shape=SHAPE)
def a_dead_letter_is_acked_unpublished(patch: Patch) -> None:
    """A message that no handler can handle is acked once it lies in the dead-letter topic."""
    patch.source(
        "weir.app.dispatcher",
        "await self._bury(part.message, part.attempts, dead.reason)",
        "part.attempts",
    )
