"""A file in the data folder, which its user alone wrote, lets an administrator in for a while."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.access.credentials import ScramVerifier
from weir.broker.shard import Shard
from weir.server.rescue import FILE, VALID_SECONDS, RescueWatch, offered, read_offer

ME = os.geteuid()


def found(folder: Path, user: int = ME, later: float = 0.0) -> ScramVerifier | None:
    return read_offer(folder, user, time.time() + later)


def test_an_offer_lasts_as_long_as_its_block(tmp_path: Path) -> None:
    assert found(tmp_path) is None
    with offered(tmp_path) as first:
        one = found(tmp_path)
        assert one is not None
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
        assert first.encode() not in (tmp_path / FILE).read_bytes()
        with offered(tmp_path) as second:  # what was left by a crash is replaced
            assert second != first
            assert found(tmp_path) not in (None, one)
    assert found(tmp_path) is None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_have_to_do_with_is_none(tmp_path: Path, mode: int) -> None:
    with offered(tmp_path):
        (tmp_path / FILE).chmod(mode)
        assert found(tmp_path) is None


def test_an_old_file_and_one_of_the_future_are_none(tmp_path: Path) -> None:
    with offered(tmp_path):
        assert found(tmp_path, later=VALID_SECONDS - 5) is not None
        assert found(tmp_path, later=VALID_SECONDS + 5) is None
        assert found(tmp_path, later=-60.0) is None


@pytest.mark.skipif(ME != 0, reason="only root may give a file away")
def test_a_file_of_another_user_is_none(tmp_path: Path) -> None:
    with offered(tmp_path):
        os.chown(tmp_path / FILE, 12_345, 0)
        assert found(tmp_path) is None
        assert found(tmp_path, user=12_345) is not None
        assert found(tmp_path, user=54_321) is None


@pytest.mark.parametrize("data", [b"", b"[1]", b'[4096,"","",""]', b"x" * 5_000])
def test_what_is_no_verifier_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    (tmp_path / FILE).chmod(0o600)
    assert found(tmp_path) is None


def test_a_link_or_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert found(tmp_path) is None


def test_a_shard_is_told_once_of_each_offer(tmp_path: Path) -> None:
    told: list[ScramVerifier | None] = []
    shard: Any = SimpleNamespace(offer_rescue=told.append)
    watch = RescueWatch(cast(Shard, shard), tmp_path)

    async def look() -> None:
        for _ in range(2):
            with watch:
                pass

    asyncio.run(look())
    assert told == []
    with offered(tmp_path):
        asyncio.run(look())
    asyncio.run(look())
    assert [one is None for one in told] == [False, True]
