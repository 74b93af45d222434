"""A replica that cannot go on: what it met, in words."""

from __future__ import annotations

from weir.errors import Damaged, Halted, UnknownVersion
from weir.model.ids import REGISTRY_GROUP


class ReplicaHalt(Damaged):
    """A committed entry, or a state, cannot be applied to what is here. It is never skipped: what
    it meant would be missing here for ever, and there alone.
    """

    def __init__(self, group: int, what: str, error: Exception) -> None:
        """Name the group, what it is that cannot be applied, and what came of it."""
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, Halted | UnknownVersion):
            cause = "it was written by a newer release of weir: upgrade this node"
        else:
            cause = "either a leader broke the rules, or this release of weir has a bug"
        later = " at the next start of this node" if group == REGISTRY_GROUP else ""
        super().__init__(
            f"the replica of group {group} has stopped, for {what} cannot be applied ({said}): "
            f"{cause}. It neither votes nor serves from here on, and all other groups go on. "
            f"Where the other replicas go on without it, it is filled anew from them{later}; where "
            "they do not, restore what it holds from a backup. Until then its log frees no space"
        )


def why_no_state(error: Exception) -> str:
    """Return why a snapshot that came is not taken."""
    if isinstance(error, UnknownVersion) and error.is_newer:
        return (
            f"a snapshot came that was written by a newer release of weir (level {error.version}, "
            f"this one reads up to {error.newest}): upgrade this node"
        )
    if isinstance(error, Halted):
        return f"a snapshot came that is not for this node: {error}"
    return "a snapshot came that cannot be decoded"
