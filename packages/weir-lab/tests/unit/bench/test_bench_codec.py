"""The codec's figures: of the right steps, and only if what comes out is what went in."""

import pytest

from weir.model.batch import Batch
from weir_lab.bench import codec
from weir_lab.bench.codec import Settings, measure


@pytest.mark.parametrize("mixed", [False, True])
def test_every_step_is_timed(mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_ROUNDS", 2)
    result = measure(Settings(100, 40, mixed))
    assert 100 * 40 < result.batch_bytes < 100 * 60
    # Which of them is slower is for a machine at rest to say.
    assert min(result.open_us, result.check_us, result.encode_ns, result.decode_ns) > 0


def test_mixed_values_have_the_size_on_average() -> None:
    values = Settings(1_000, 100, True).values()
    assert len({len(value) for value in values}) > 50
    assert sum(map(len, values)) / 1_000 == pytest.approx(100, rel=0.02)


def test_a_codec_that_changes_values_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "values", lambda batch: [b"other"])
    with pytest.raises(ValueError, match="other values"):
        measure(Settings(10, 10))
