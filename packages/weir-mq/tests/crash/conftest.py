"""What tests that kill processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.nodes import NodeSet, Patient


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeSet]:
    """Yield a set of three nodes of one shard that runs."""
    found = NodeSet(tmp_path, 3, 1)
    try:
        found.start(Patient())
        yield found
    finally:
        found.stop()
