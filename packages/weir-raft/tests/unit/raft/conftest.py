"""A lone voter with every step in the hands of a test, and groups of several."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rigs.lone_voter import Lone
from weir_raft.testing.rehearsal import Rehearsal


@pytest.fixture
def lone() -> Callable[..., Lone]:
    return Lone


@pytest.fixture
def leader() -> Lone:
    host = Lone()
    host.lead()
    return host


@pytest.fixture
def group() -> Rehearsal:
    """Voters 1 to 3, and 4 and 5 who know of nobody; nothing happens by itself."""
    return Rehearsal(0, spare=(4, 5), max_append_bytes=30, max_inflight_bytes=90)
