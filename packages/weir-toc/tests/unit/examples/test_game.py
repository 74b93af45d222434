"""The game of the documentation: all players have the same state in each frame, at 1 % loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import weir_toc
from rigs import lossy_link
from rigs.examples import FOLDER, Rows, example, rows_of, wait_for_all
from rigs.loopback import loopback
from rigs.programs import free_ports, programs

GAME = example("game")


def all_agree(said: dict[str, Rows], frames: int) -> None:
    """Each frame has one hash, at all players; hits were fought, positions were lost."""
    hashes = {name: {row[1]: row[2:] for row in rows if row[0] == "frame"}
              for name, rows in said.items()}  # fmt: skip
    assert all(one == hashes["p1"] for one in hashes.values())
    assert len(hashes["p1"]) >= frames
    assert len({hash for hash, _ in hashes["p1"].values()}) > 3
    ends = {name: [row[1:4] for row in rows if row[0] == "end"] for name, rows in said.items()}
    assert all(one == ends["p1"] for one in ends.values())
    ((_, _, hits),) = ends["p1"]
    assert int(hits) > 0
    assert sum(int(rows[-1][5]) for rows in said.values()) > 0


def test_all_players_have_one_state_in_each_frame(tmp_path: Path) -> None:
    frames = 20
    said: dict[str, Rows] = {name: [] for name in GAME.NAMES}

    async def play(url: str, name: str) -> None:
        async with weir_toc.join(url, name=name) as me:
            await GAME.run(me, frames, lambda *words: said[name].append([*map(str, words)]))

    async def all_play(url: str) -> None:
        await asyncio.gather(*(play(url, name) for name in GAME.NAMES))

    with loopback(tmp_path, loss=0.01) as network:
        asyncio.run(all_play(network.url))
        assert network.link is not None
        assert network.link.lost > 0
    all_agree(said, frames // 2)


@pytest.mark.slow
def test_processes_play_at_one_percent_of_loss(tmp_path: Path) -> None:
    names = GAME.NAMES
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", "100")
        own, lossy = (f"127.0.0.1:{port}" for port in free_ports(2))
        crew.start("link", lossy_link.__file__, lossy, own, "0.01")
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url, "--listen", own,
                   "--advertise", lossy)  # fmt: skip
        for name in names:
            crew.start(name, str(FOLDER / "game.py"), crew.url, name, "200")
        wait_for_all(crew, names)
    all_agree({name: rows_of(crew, name) for name in names}, 100)
