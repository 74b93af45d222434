"""A URL of weirs:// is all that Spark needs: driver and executors connect by TLS, both ways."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from rigs.certificates import TestCa
from weir.client.sync.client import connect
from weir.server.disk.node_folder import NodeFolder
from weir.testing.nodes import start_node


def test_rows_come_and_go_by_tls_and_by_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    ca = TestCa(tmp_path / "ca", NodeFolder(data).found(2).system)
    files = ca.files(ca.issue("node/1"))
    anna = ca.issue("user/default/anna")
    (tmp_path / "scratch").mkdir()
    node = start_node(
        data, tmp_path / "scratch", shards=1, certificate=files.certificate, key=files.key,
        trust=files.trust, plaintext="refuse", clients="require",
    )  # fmt: skip
    with node:
        url = ca.url(node.port, anna)
        with connect(url) as client:
            client.create_topic("doors", 2)
            client.create_topic("copies")
            with client.producer("doors") as producer:
                for n in range(100):
                    producer.send(b"%d" % n, partition=n % 2)
        rows = spark.read.format("weir").option("url", url).option("topic", "doors").load()
        assert {row.value for row in rows.collect()} == {b"%d" % n for n in range(100)}
        writer = rows.select("value").write.format("weir").mode("append")
        writer.option("url", url).option("topic", "copies").save()
        with connect(url) as client, client.reader("copies", follow=False) as reader:
            assert {message.value for message in reader} == {b"%d" % n for n in range(100)}
