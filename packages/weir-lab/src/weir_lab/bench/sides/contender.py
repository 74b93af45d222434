"""One of those that are compared: what it is called, and how it is run once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """What came of a run; `figure` is None where it did not do all of its work.

    `result` is clean, or not: it says so by an attribute of that name.
    """

    version: str
    settings: str
    result: Any
    figure: float | None


class Contender(NamedTuple):
    """`run` starts it anew, measures it at an amount, and ends it. weir itself is `own`, in each of
    its ways.
    """

    label: str
    settings: str
    synced: bool
    run: Callable[[int], Ran]
    own: bool = False
