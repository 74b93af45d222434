"""Real processes on loopback: one order of both services for all, and one place of a failure."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from rigs import worker
from rigs.programs import PATIENCE_SECONDS, Programs, programs

COUNT = 10
Line = list  # type: ignore[type-arg]


def lines(crew: Programs, name: str) -> list[Line]:
    """What a worker has printed by now, whole lines."""
    text = (crew.folder / f"{name}.out").read_text()
    return [json.loads(one) for one in text.splitlines(keepends=True) if one.endswith("\n")]


def wait_for(crew: Programs, names: list[str], what: str) -> None:
    """Wait until all of these workers have printed a word."""
    until = time.monotonic() + 2 * PATIENCE_SECONDS
    while not all([what] in lines(crew, name) for name in names):
        for name in names:
            assert crew.running[name].poll() is None, crew.errors(name)
        assert time.monotonic() < until, {name: lines(crew, name)[-3:] for name in names}
        time.sleep(0.1)


@pytest.mark.parametrize("count", [2, 8])
def test_processes_deliver_in_one_order_and_see_a_failure_at_one_place(
    tmp_path: Path, count: int
) -> None:
    names = [f"p{number}" for number in range(count)]
    victim, survivors = names[-1], names[:-1]
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            # The processes of a test share two cores: they must not be taken for dead.
            crew.controller(id, "--interval-ms", "400")
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url)
        for name in names:
            crew.start(name, worker.__file__, crew.url, name, str(COUNT), ",".join(names), victim)
        wait_for(crew, names, "ready")
        crew.kill(victim)
        wait_for(crew, survivors, "done")
        said = {name: lines(crew, name) for name in survivors}
        gone = lines(crew, victim)
    ids = next(one[1] for one in said[survivors[0]] if one[0] == "ids")
    reliable_everywhere(said, ids, gone, victim)
    best_effort_in_order(said, ids, gone)


def reliable_everywhere(
    said: dict[str, list[Line]], ids: dict[str, int], gone: list[Line], victim: str
) -> None:
    """All survivors have the same sequence, the failure in it; all that was sent is accounted."""
    sequences = [[one for one in rows if one[0] in ("r", "failed")] for rows in said.values()]
    assert all(one == sequences[0] for one in sequences)
    sequence = sequences[0]
    (place,) = [at for at, one in enumerate(sequence) if one[0] == "failed"]
    _, process, stamp = sequence[place]
    assert process == ids[victim]
    messages = [one for one in sequence if one[0] == "r"]
    keys = [(one[1], one[2]) for one in messages]
    assert all(one < other for one, other in pairwise(keys))
    assert [one for one in sequence[:place] if one[1] > stamp] == []
    assert [one for one in sequence[place + 1 :] if one[1] <= stamp] == []
    assert [one for one in messages if one[2] == process and one[1] > stamp] == []
    delivered = {(one[1], one[2]): one[3] for one in messages}
    for name, rows in [*said.items(), (victim, gone)]:
        recalled = {one[1] for one in rows if one[0] == "r-failed"}
        for _, sent_stamp, text in (one for one in rows if one[0] == "r-sent"):
            key = sent_stamp, ids[name]
            if sent_stamp in recalled or (name == victim and key not in delivered):
                assert key not in delivered
                assert name != victim or int(text.split()[1]) >= COUNT  # all had those before
            else:
                assert delivered.pop(key) == text
    # The victim may have died between a message and the line that tells of it.
    rest = {key: text for key, text in delivered.items() if text != "last"}
    assert all(source == process for _, source in rest)
    assert len(rest) <= 1


def best_effort_in_order(
    said: dict[str, list[Line]], ids: dict[str, int], gone: list[Line]
) -> None:
    """Each sequence rises; each message is as sent; what is missing was told to its sender."""
    sent = {
        (one[1], ids[name]): one[2]
        for name, rows in said.items()
        for one in rows
        if one[0] == "be-sent"
    }
    of_victim = {one[2] for one in gone if one[0] == "be-sent"}
    for name, rows in said.items():
        got = {(one[1], one[2]): one[3] for one in rows if one[0] == "be"}
        assert all(one < other for one, other in pairwise(got))
        assert len(got) == len([one for one in rows if one[0] == "be"])
        for key, text in got.items():
            assert sent.get(key) == text or text in of_victim
        for (stamp, source), _ in sent.items():
            sender = next(one for one, id in ids.items() if id == source)
            told = [one for one in said[sender] if one[0] == "be-failed" and one[1] == stamp]
            assert (stamp, source) in got or ids[name] in {one[2] for one in told}
