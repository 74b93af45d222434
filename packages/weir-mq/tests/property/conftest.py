"""The twin that tests of the log drive it beside."""

from __future__ import annotations

import pytest

from rigs.log_driver import Drive


@pytest.fixture(scope="session")
def drive() -> Drive:
    return Drive()
