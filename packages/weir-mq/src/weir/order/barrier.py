"""The barrier of one partition, as its leader hands it out (DESIGN §5 Barrier safety)."""

from __future__ import annotations

from typing import NamedTuple


class Barrier(NamedTuple):
    """All that is ever stamped at or below `stamp` lies below offset `through`, and is committed.

    A replica may use it once it has applied everything below `through` (counterexample 5).
    """

    stamp: int
    through: int


#: What is said of a partition of which nothing is known.
NO_BARRIER = Barrier(0, 0)


def barrier_at(fenced: int, committed: int, undecided: int, through: int) -> Barrier:
    """Return what a leader may say now.

    `fenced` is what a majority has promised for it, 0 for nothing; `committed` is the stamp of its
    last committed entry, 0 before one of its own term is; `undecided` is the lowest stamp that it
    has given and that is not committed, 0 if there is none; `through` lies behind its last
    committed message.
    """
    stamp = committed if committed > fenced else fenced
    if undecided and undecided <= stamp:
        stamp = undecided - 1
    return Barrier(stamp, through)
