"""What ends a Spark query that reads from weir, said so that the user knows what to do."""

from __future__ import annotations

from weir.errors import WeirError


class BadOption(WeirError):
    """An option of `format("weir")` is missing, unknown or out of range."""


class CheckpointMismatch(WeirError):
    """The checkpoint speaks of another topic than the broker has under this name."""


class RangeLost(WeirError):
    """The broker no longer holds all messages of a range that the query was promised."""


class ValueTooLarge(WeirError):
    """A message's value is larger than the query may load."""


class NoJava(WeirError):
    """No Java runtime that can run Spark was found."""
