"""`weir bench filter` measures what it says: which bytes move, and that each message comes once."""

from __future__ import annotations

import json

import pytest

from weir.cli.main import main
from weir.errors import WeirError
from weir_lab.bench import filtering
from weir_lab.bench.filtering import Settings, measure, tags_of


def test_one_tag_of_ten_moves_little_more_than_what_matches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "filter", "--messages", "40000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "weir.bench.filter/1"
    mixed, runs = found["shapes"]
    assert (mixed["shape"], runs["shape"]) == ("mixed", "runs")
    assert mixed["matching"] == runs["matching"] == 4_000
    # Without slices and skipped runs all batches move, which is ten times what matches.
    assert 1 <= runs["bytes_ratio"] < 2
    assert 1 <= mixed["bytes_ratio"] < 2
    assert runs["disk_ratio"] < mixed["disk_ratio"]


def test_runs_are_of_one_tag() -> None:
    settings = Settings(tags=2, messages=40)
    assert tags_of(settings, "mixed", 1, 3) == ["tag1", "tag0", "tag1"]
    assert tags_of(settings, "runs", 9, 2) == ["tag0", "tag1"]


def test_a_message_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = filtering._fill

    def fill_less(settings: Settings, *given: object) -> None:
        honest(Settings(settings.tags, settings.messages, settings.size), *given)  # type: ignore[arg-type]
        monkeypatch.setattr(filtering, "tags_of", lambda _, shape, first, count: ["tag0"] * count)

    monkeypatch.setattr(filtering, "_fill", fill_less)
    with pytest.raises(WeirError, match="mixed: 1000 of 2000 messages of tag0 were read"):
        measure(Settings(tags=2, messages=2_000), lambda done: None)


@pytest.mark.parametrize("change", [{"tags": 1}, {"messages": 5}, {"size": 0}])
def test_what_cannot_be_measured_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        measure(Settings(**change), lambda done: None)  # type: ignore[arg-type]
