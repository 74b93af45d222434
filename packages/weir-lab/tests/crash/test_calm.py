"""A set at full load elects nobody while each disk's syncs stand still now and then."""

from __future__ import annotations

import json

import pytest

from weir_lab.bench.faults import calm

TRIES = 5


def page(*terms: tuple[str, int]) -> str:
    return "".join(f'weir_raft_term{{topic="{topic}"}} {term}\n' for topic, term in terms)


def test_elections_of_all_partitions_count() -> None:
    before = calm.terms_of([page(("calm-0", 1), ("other", 4)), page(("calm-0", 2), ("other", 3))])
    assert sorted(before.values()) == [2, 4], "a node that has not heard of it yet counts less"
    after = calm.terms_of([page(("calm-0", 2), ("other", 6), ("new", 9))])
    assert calm.risen(before, after) == 2, "a topic's first election is none of a set at rest"
    assert calm.risen({}, after) == 0


@pytest.mark.timeout(300)
def test_stalls_of_the_disk_under_load_cause_no_election(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # As for a slow link: a machine that does something else may let a node stand still.
    for _ in range(TRIES):
        words = ["--seconds", "12", "--stall-s", "1", "--every-s", "2", "--messages", "50000"]
        code = calm.main(words)
        told = json.loads(capsys.readouterr().out)
        assert (told["lost"], told["repeated"]) == (0, 0)
        assert told["slow_flushes"] >= 3
        if told["elections"] == 0:
            assert code == 0
            return
    pytest.fail(f"{told['elections']} elections in the last of {TRIES} runs")
