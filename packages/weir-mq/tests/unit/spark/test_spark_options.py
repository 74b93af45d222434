"""The options of `format("weir")`: read in any case, checked before a broker is asked."""

from __future__ import annotations

import pickle

import pytest

from weir.errors import BadOption
from weir.model.limits import FETCH_BYTES_MAX
from weir.spark.admission import Admission
from weir.spark.options import NAMES, Offsets, Options
from weir.spark.selection import Selection


def test_a_topic_is_enough() -> None:
    assert Options.parse({"topic": "t"}) == Options("t", (("127.0.0.1", 6800),))


def test_every_option_is_read_in_any_case() -> None:
    given = {
        "TOPIC": "shop/orders",
        "URL": "weir://a:1,b",
        "STARTINGOFFSETS": '{"0": 12, "3": 0}',
        "endingoffsets": '{"0": 90}',
        "KEYS": '["k"]',
        "tags": '[""]',
        "Partitions": "[1]",
        "maxrowsperbatch": "10",
        "maxbytesperbatch": "4096",
        "MINROWSPERBATCH": "3",
        "MaxTriggerDelay": "1.5m",
        "ondataloss": "EARLIEST",
        "MaxBytesPerFetch": "65536",
        "minPartitions": "4",
        "maxRowsPerPartition": "5",
        "Columns": '["value", "offset"]',
        "maxIdleWaitMs": "0",
        "readFrom": "Nearest",
    }
    expected = Options(
        "shop/orders", (("a", 1), ("b", 6800)), Offsets({0: 12, 3: 0}), Offsets({0: 90}),
        Selection(frozenset([b"k"]), frozenset([""]), frozenset([1])),
        Admission(10, 4_096, 3, 90.0), 65_536, 4, 5, columns=("value", "offset"), over_gaps=True,
        idle_wait_ms=0, read_from="nearest",
    )  # fmt: skip
    assert Options.parse(given) == expected
    assert pickle.loads(pickle.dumps(expected)) == expected
    assert Options.parse({"topic": "t", "host": "h", "port": "7"}).hosts == (("h", 7),)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "needs a topic"),
        ({"topic": "a b"}, "option topic"),
        ({"topic": "t", "startingOffset": "latest"}, f"it has {NAMES[0]}"),
        ({"topic": "t", "url": "weir://h", "port": "1"}, "not both"),
        ({"topic": "t", "url": "kafka://h"}, "is no address"),
        ({"topic": "t", "port": "70000"}, "is no address"),
        ({"topic": "t", "startingOffsets": "newest"}, "earliest, latest"),
        ({"topic": "t", "startingOffsets": "[1]"}, "earliest, latest"),
        ({"topic": "t", "startingOffsets": '{"0": -1}'}, "earliest, latest"),
        ({"topic": "t", "startingOffsets": '{"0": true}'}, "earliest, latest"),
        ({"topic": "t", "startingOffsets": '{"x": 1}'}, "earliest, latest"),
        ({"topic": "t", "pushdown": "true"}, "load options keys, tags or partitions"),
        ({"topic": "t", "pushDown": "false"}, "load options keys, tags or partitions"),
        ({"topic": "t", "keys": "EWR"}, "JSON list of keys"),
        ({"topic": "t", "columns": "value"}, "JSON list of different names out of topic"),
        ({"topic": "t", "columns": "[]"}, "JSON list of different names"),
        ({"topic": "t", "columns": '["value", "values"]'}, "JSON list of different names"),
        ({"topic": "t", "columns": '["value", "value"]'}, "JSON list of different names"),
        ({"topic": "t", "columns": '[["value"]]'}, "JSON list of different names"),
        ({"topic": "t", "maxRowsPerBatch": "0"}, "from 1 to"),
        ({"topic": "t", "maxRowsPerBatch": "-5"}, "maxRowsPerBatch is '-5'"),
        (
            {"topic": "t", "maxOffsetsPerTrigger": "5"},
            "'maxoffsetspertrigger': use maxRowsPerBatch",
        ),
        ({"topic": "t", "failOnDataLoss": "false"}, "use onDataLoss"),
        ({"topic": "t", "onDataLoss": "ignore"}, "onDataLoss is 'ignore': give fail or earliest"),
        ({"topic": "t", "minRowsPerBatch": "6", "maxRowsPerBatch": "5"}, "no micro-batch has as"),
        ({"topic": "t", "maxTriggerDelay": "5m"}, "give both"),
        (
            {"topic": "t", "minRowsPerBatch": "6", "maxTriggerDelay": "5"},
            "maxTriggerDelay.*no unit",
        ),
        ({"topic": "t", "maxBytesPerBatch": "1k"}, "maxBytesPerBatch is '1k'"),
        ({"topic": "t", "minPartitions": "many"}, "minPartitions"),
        ({"topic": "t", "maxIdleWaitMs": "10001"}, "from 0 to 10,000"),
        ({"topic": "t", "readFrom": "closest"}, "give leader or nearest or url"),
        ({"topic": "t", "maxBytesPerFetch": str(FETCH_BYTES_MAX + 1)}, "to 8,388,608"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        Options.parse(given)
