"""What workers have printed, and whether it is one order, with each failure at one place."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rigs.programs import PATIENCE_SECONDS, Programs

Line = list  # type: ignore[type-arg]
Said = Mapping[str, list[Line]]


def lines(crew: Programs, name: str) -> list[Line]:
    """What a worker has printed by now, whole lines."""
    text = (crew.folder / f"{name}.out").read_text()
    return [json.loads(one) for one in text.splitlines(keepends=True) if one.endswith("\n")]


def wait_for(crew: Programs, names: Sequence[str], what: str) -> None:
    """Wait until all of these workers have printed a word."""
    until = time.monotonic() + 2 * PATIENCE_SECONDS
    while not all([what] in lines(crew, name) for name in names):
        for name in names:
            assert crew.running[name].poll() is None, crew.errors(name)
        assert time.monotonic() < until, {name: lines(crew, name)[-3:] for name in names}
        time.sleep(0.1)


def reliable_everywhere(said: Said, ids: Mapping[str, int], gone: Said, count: int) -> None:
    """All in `said` have the same sequence, the failures of all in `gone` in it.

    All that was sent is accounted for. The first `count` scatterings of each were delivered before
    the failures.
    """
    sequences = [[one for one in rows if one[0] in ("r", "failed")] for rows in said.values()]
    assert all(one == sequences[0] for one in sequences)
    sequence = sequences[0]
    messages = [one for one in sequence if one[0] == "r"]
    places = {one[1]: at for at, one in enumerate(sequence) if one[0] == "failed"}
    assert len(places) == len(sequence) - len(messages)
    assert places.keys() == {ids[name] for name in gone}
    keys = [(one[1], one[2]) for one in messages]
    assert all(one < other for one, other in pairwise(keys))
    for process, place in places.items():
        stamp = sequence[place][2]
        before, behind = sequence[:place], sequence[place + 1 :]
        assert [one for one in before if one[0] == "r" and one[1] > stamp] == []
        assert [one for one in behind if one[0] == "r" and one[1] <= stamp] == []
        assert [one for one in messages if one[2] == process and one[1] > stamp] == []
    delivered = {(one[1], one[2]): one[3] for one in messages}
    for name, rows in [*said.items(), *gone.items()]:
        recalled = {one[1] for one in rows if one[0] == "r-failed"}
        for _, sent_stamp, text in (one for one in rows if one[0] == "r-sent"):
            key = sent_stamp, ids[name]
            if sent_stamp in recalled or (name in gone and key not in delivered):
                assert key not in delivered
                assert name not in gone or int(text.split()[1]) >= count  # all had those before
            else:
                assert delivered.pop(key) == text
    # One that is gone may have ended between a message and the line that tells of it.
    rest = [source for (_, source), text in delivered.items() if text != "last"]
    assert set(rest) <= places.keys()
    assert len(rest) == len({*rest})


def best_effort_in_order(said: Said, ids: Mapping[str, int], gone: Said) -> None:
    """Each sequence rises; each message is as sent; what is missing was told to its sender."""
    sent = {
        (one[1], ids[name]): one[2]
        for name, rows in said.items()
        for one in rows
        if one[0] == "be-sent"
    }
    of_gone = {one[2] for rows in gone.values() for one in rows if one[0] == "be-sent"}
    names = {id: name for name, id in ids.items()}
    for name, rows in said.items():
        got = {(one[1], one[2]): one[3] for one in rows if one[0] == "be"}
        assert all(one < other for one, other in pairwise(got))
        assert len(got) == len([one for one in rows if one[0] == "be"])
        for key, text in got.items():
            assert sent.get(key) == text or text in of_gone
        for stamp, source in sent:
            told = [one for one in said[names[source]] if one[0] == "be-failed" and one[1] == stamp]
            assert (stamp, source) in got or ids[name] in {one[2] for one in told}


def prefixes(said: Said, gone: Said) -> None:
    """What those that are gone delivered before is how the others' sequence begins."""
    sequence = next([one for one in rows if one[0] == "r"] for rows in said.values())
    for rows in gone.values():
        mine = [one for one in rows if one[0] == "r"]
        assert mine == sequence[: len(mine)]
