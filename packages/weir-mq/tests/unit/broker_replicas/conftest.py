"""Fixtures of tests of three whole shards in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.replica_trio import Trio, batch
from weir.broker.api.settings import Replication
from weir.protocol.client import messages as m


@pytest.fixture
def make_trio() -> Callable[..., Trio]:
    """Return what founds a set of three nodes, with fields of `ShardSettings`."""

    def make(**settings: Any) -> Trio:
        return Trio(settings)

    return make


@pytest.fixture
def trio(make_trio: Callable[..., Trio]) -> Trio:
    return make_trio()


@pytest.fixture
def produce() -> Callable[..., m.Produce]:
    """Return what packs a batch: (topic, grant, sequence, values ...)."""
    return batch


@pytest.fixture
def small() -> Replication:
    """Sizes at which a snapshot and a catching up take many messages."""
    return Replication(append_bytes_max=512, inflight_bytes_max=2048, snapshot_chunk_bytes=128)
