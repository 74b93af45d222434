"""Players of seeds: whoever waits for them is told when there are none, or when they end early."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigs.many_seeds import JUDGES, ManySeeds, judged


def test_seeds_that_nobody_plays_are_not_judged(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no seeds are played"):
        judged(tmp_path)


def test_players_begin_once_and_one_that_ends_early_is_told() -> None:
    seeds = ManySeeds()
    try:
        seeds.begin()
        at_work = sorted(seeds.folder.iterdir())
        seeds.begin()
        assert {one.name.partition("-")[0] for one in at_work} == {"run", "toc"}
        assert sorted(seeds.folder.iterdir()) == at_work
        seeds.stop()
        for what in ("run", "toc"):
            with pytest.raises(AssertionError, match="ended early"):
                judged(seeds.folder, what)
    finally:
        seeds.end()
    assert not seeds.folder.exists()


def test_only_what_is_judged_is_played() -> None:
    seeds = ManySeeds()
    (judge,) = (name for name, (what, _) in JUDGES.items() if what == "toc")
    try:
        seeds.begin([judge])
        assert {one.name.partition("-")[0] for one in seeds.folder.iterdir()} == {"toc"}
        with pytest.raises(AssertionError, match="no seeds are played"):
            judged(seeds.folder)
    finally:
        seeds.end()
