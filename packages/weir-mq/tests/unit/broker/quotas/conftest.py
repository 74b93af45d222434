"""Peers that use too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.tenants import Tenants


@pytest.fixture
def tenants(make_rig: Callable[..., Any]) -> Tenants:
    return Tenants(make_rig())
