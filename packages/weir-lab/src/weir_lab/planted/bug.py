"""What a bug is that tests must miss: a piece of source, what stands there instead, and tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weir_lab.sim.mutants.planting import Patch


class Bug:
    """A rule that is taken away by source text, and the tests of which one must fail then."""

    __slots__ = ("instead", "module", "name", "piece", "rule", "tests")

    def __init__(
        self, name: str, rule: str, module: str, piece: str, instead: str, *tests: str
    ) -> None:
        """Replace `piece` of a module, which must stand there once; `tests` are ids of pytest."""
        self.name = name
        self.rule = rule
        self.module = module
        self.piece = piece
        self.instead = instead
        self.tests = tests

    @contextmanager
    def planted(self) -> Iterator[Patch]:
        """Let the code be as it is with the bug. Raises `PlantingRefused`."""
        patch = Patch()
        try:
            patch.source(self.module, self.piece, self.instead)
            yield patch
        finally:
            patch.undo()
