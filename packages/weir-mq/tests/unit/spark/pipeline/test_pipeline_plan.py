"""What a pipeline's file may say; what is wrong in it is told by its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.errors import BadPipeline
from weir.spark.pipeline import plan, template

LEAST = """
url = "weir://localhost:6800"
[bronze.events]
topics = ["locks", "shop/orders"]
[silver.locks]
topic = "locks"
schema = "topic"
[gold.unlocks]
from = ["locks"]
"""


def read(folder: Path, text: str) -> plan.Plan:
    (folder / plan.FILE).write_text(text)
    return plan.read(folder)


def test_the_file_that_is_written_first_can_be_read(tmp_path: Path) -> None:
    files = template.write(tmp_path / "p", "weir://b:1", "doors")
    assert [path.name for path in files] == ["pipeline.toml", "lock.json", "silver.py", "gold.py"]
    found = plan.read(tmp_path / "p")
    assert found.url == "weir://b:1"
    assert [*found.steps()] == [
        ("bronze", "events"),
        ("silver", "locks"),
        ("gold", "unlocks"),
        ("gold", "sessions"),
    ]
    with pytest.raises(BadPipeline, match="is there already"):
        template.write(tmp_path / "p", "weir://b:1", "doors")


def test_folders_are_below_the_pipelines_own(tmp_path: Path) -> None:
    found = read(tmp_path, LEAST)
    assert found.lake_of("locks") == tmp_path / "lake" / "bronze" / "locks"
    # A lake within a lake would be deleted by its vacuum.
    assert found.lake_of("shop/orders") == tmp_path / "lake" / "bronze" / "shop~orders"
    assert found.table_of("gold", "unlocks") == tmp_path / "lake" / "gold" / "unlocks"
    assert found.quarantine_of("locks") == tmp_path / "lake" / "quarantine" / "locks"
    assert found.checkpoint_of("locks") == tmp_path / "checkpoints" / "locks"
    elsewhere = LEAST.replace('["locks", "shop/orders"]', '["locks"]\nlake = "/data/locks"')
    assert read(tmp_path, elsewhere).lake_of("locks") == Path("/data/locks")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("url =", "urls =", "unknown field `urls`"),
        ('schema = "topic"', 'schema = "topic"\nrule = "x"', "silver.*: .*unknown field `rule`"),
        ("url =", "url", "pipeline.toml: "),
        ('url = "weir://localhost:6800"', "url = 7", "url: Expected `str`, got `int`"),
        ("weir://localhost:6800", "http://x", "url: "),
        ("[bronze.events]", "[bronze.Events]", "bronze.Events: a name is made of"),
        ("[silver.locks]", "[silver.events]", "two steps are called 'events'"),
        ('topics = ["locks", "shop/orders"]', "topics = []", "topics: name one"),
        ('"shop/orders"]', '"default/locks"]', "'locks' is kept twice"),
        ('"shop/orders"]', '"a b"]', "topic 'a b' is not allowed"),
        ('"shop/orders"]', '"o"]\nlake = "x"', "lake: it is for a step of one topic"),
        ('topic = "locks"', 'topic = "keys"', "no bronze step keeps topic 'keys'"),
        ('schema = "topic"', 'schema = "topic"\nwithin = "9"', "within: '9' has no unit"),
        ('schema = "topic"', 'schema = "topic"\nwithin = "9ms"', "within: give 1s or more"),
        ('schema = "topic"', 'schema = "topic"\nto = ["x"]', "to: there is no sink 'x'"),
        ('from = ["locks"]', "from = []", "from: name a silver step"),
        ('from = ["locks"]', 'from = ["events"]', "no silver step 'events'"),
        ('from = ["locks"]', 'from = ["locks", "locks"]', "a step is named twice"),
        ('from = ["locks"]', 'from = ["locks"]\nto = ["s"]\n[sinks.s]\n', "one of sql and topic"),
        ('from = ["locks"]', 'from = ["locks"]\ntime = "at"', "give time and watermark, or nei"),
        (
            'from = ["locks"]',
            'from = ["locks"]\ntime = "at"\nwatermark = "soon"',
            "gold.unlocks.watermark: 'soon' is no duration",
        ),
        ("url =", "rows_per_batch = 0\nurl =", "rows_per_batch: give 1 or more"),
        ("url =", 'lake = "s3://x/y"\nurl =', "lake: .* the driver and all executors see"),
        ("url =", 'every = "soon"\nurl =', "every: 'soon' is no duration"),
    ],
)
def test_what_is_wrong_is_told_by_its_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert LEAST.count(old) >= 1
    with pytest.raises(BadPipeline, match=words):
        read(tmp_path, LEAST.replace(old, new, 1))


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadPipeline, match=r"is not there: weir pipeline init .* writes one"):
        plan.read(tmp_path / "none")
    (tmp_path / plan.FILE).write_bytes(b"\xff")
    with pytest.raises(BadPipeline, match="not UTF-8"):
        plan.read(tmp_path)
    (tmp_path / plan.FILE).write_bytes(b"#" * (plan.FILE_BYTES_MAX + 1))
    with pytest.raises(BadPipeline, match="has more than 1,048,576 bytes"):
        plan.read(tmp_path)
