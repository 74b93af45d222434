"""What `weir cluster lag` says after a kill -9 is what a full count comes to.

`make proof ONLY=lag,lag-set` does it twenty times, and with three nodes.
"""

from __future__ import annotations

import json

import pytest

from weir_lab.bench.consumers import lag
from weir_lab.bench.consumers.lag import main, said

pytestmark = pytest.mark.timeout(180)


def test_the_lag_is_what_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--restarts=2", "--work-s=0.5", "--deadline-s=120"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["restarts"], found["disagreed"], found["wrong"]) == (2, 0, 0)
    assert found["most_left"] > 0
    last = found["rounds"][-1]
    assert 0 < last["acked"] < last["published"]


def test_a_lag_that_is_wrong_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lag, "said", lambda url: said(url) - 1)
    assert main(["--restarts=1", "--work-s=0.3", "--deadline-s=120"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["disagreed"], found["wrong"]) == (1, 0)
