"""A small backlog before the real `weir work`, as `make proof ONLY=work` measures a large one."""

from __future__ import annotations

import json

import pytest

from weir_lab.bench.consumers.pool import main

pytestmark = pytest.mark.timeout(150)


def test_the_pool_grows_with_a_backlog_and_shrinks_behind_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--backlog=3000", "--work-ms=5", "--most=2", "--cool-down-s=1", "--deadline-s=120"]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["most_processes"], found["lost"], found["repeated"]) == (2, 0, 0)
    timeline = found["timeline"]
    assert [one["seconds"] for one in timeline] == sorted(one["seconds"] for one in timeline)
    last = timeline[-1]
    assert (last["left"], last["processes"], last["wanted"]) == (0, 1, 1)
    assert any("a process does" in one["why"] for one in timeline)
    assert "3,000 left" in said.err  # and a person can read it
    assert "2  ##" in said.err
