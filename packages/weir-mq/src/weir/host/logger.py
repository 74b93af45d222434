"""Where it is said what happened, as a `logging.Logger` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Log(Protocol):
    """Takes a text, what is filled into that, and the fields of the record."""

    def info(self, text: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        """Say what happens now and then."""

    def warning(self, text: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        """Say what an operator should know."""

    def error(self, text: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        """Say what should not have happened."""
