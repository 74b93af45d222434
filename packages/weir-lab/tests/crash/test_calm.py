"""A set at full load elects nobody while each disk's syncs stand still now and then."""

from __future__ import annotations

import json

import pytest

from weir_lab.bench.faults import calm

TRIES = 5


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
