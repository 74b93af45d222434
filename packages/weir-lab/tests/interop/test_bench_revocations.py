"""Users and devices of a real set are revoked under load, and their sessions end."""

from __future__ import annotations

import pytest

from weir_lab.bench.revocations import Settings, measure
from weir_lab.bench.sessions import KINDS


def test_sessions_of_each_kind_end_and_none_is_served_behind_its_revocation() -> None:
    told: list[int] = []
    result = measure(Settings(revocations=len(KINDS), load=100), told.append)
    assert (result.unended, result.late, result.clean) == (0, 0, True)
    assert [one.kind for one in result.kinds] == [*KINDS]
    assert [one.ended for one in result.kinds] == [1] * len(KINDS)
    assert 0 < result.p50_ms <= result.p99_ms <= result.max_ms
    assert result.load_per_s > 0
    assert told == [*range(1, len(KINDS) + 1)]


@pytest.mark.parametrize("wrong", [{"revocations": 1}, {"load": 0}, {"size": 7}])
def test_what_cannot_be_measured_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong).check()  # type: ignore[arg-type]
