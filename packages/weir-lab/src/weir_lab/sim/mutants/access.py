"""Rules of access that can be taken away: who is let in, what is looked at, and what ends when.

Played in `scenarios.revocations`, a few worlds each, by tests of their own: a world of users takes
seconds. Not planted is what its clients cannot reach, because they check it themselves: a login's
proof, the parts of a scattering; and what another shard looks at again.
"""

from __future__ import annotations

from weir_lab.sim.mutants.planting import Mutant, Patch, all_in, mutant
from weir_lab.sim.scenarios.revocations import play_revocations

_ROUTER = "weir.broker.router"
_SESSION = "weir.broker.runtime.session"
_BREAKS = {"Authorized"}


@mutant(seed=2, breaks=_BREAKS, play=play_revocations)
def live_sessions_outlive_their_users(patch: Patch) -> None:
    """When something is taken away, the sessions that had it end."""
    patch.source(
        _ROUTER,
        "if admitted and self._authorizer.still_allows(session):",
        "if admitted or not admitted:",
    )


@mutant(seed=1, breaks=_BREAKS, play=play_revocations)
def decisions_outlive_changes(patch: Patch) -> None:
    """What a session was allowed counts at that access version alone; and losses end sessions."""
    patch.source(
        _SESSION, "return self._allowed.get(key) if self._version == version else None",
        "return self._allowed.get(key)",
    )  # fmt: skip
    patch.source(
        _ROUTER,
        "if admitted and self._authorizer.still_allows(session):",
        "if admitted or not admitted:",
    )


@mutant(seed=2, breaks=_BREAKS, play=play_revocations)
def lists_have_what_is_not_there_for_one(patch: Patch) -> None:
    """A list leaves out what its reader may not have described."""
    patch.source(_ROUTER, "if not self._authorizer.may_describe(session, topic):", "if False:")


#: All of this file.
ACCESS: tuple[Mutant, ...] = tuple(all_in(dict(vars())))
