"""Tests of this folder leave no connection behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weir.spark import blocking_client


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Close the connections that this process would keep for the next task."""
    yield
    blocking_client.forget_all()
