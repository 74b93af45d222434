"""What verbs that measure print with `--json`."""

from __future__ import annotations

import json
import platform

import pytest

from weir_lab.cli.measured import print_measured


def test_a_benchmark_says_what_it_was_measured_on_without_a_local_suffix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.1.7-98-acme-build+")
    print_measured("weir.bench.x/1", {}, {"answer": 42})
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["schema", "command", "machine", "settings", "answer"]
    assert found["machine"]["cpus"] >= 1
    assert "-6.1.7-" in found["machine"]["system"]
    assert "acme" not in found["machine"]["system"]
