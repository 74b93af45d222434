"""Queries of a closed set log in by TLS, by a password in the driver and tokens in tasks, and what
Spark tells of them holds neither.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rigs.certificates import TestCa
from weir.client.access import AccessRule
from weir.client.sync.client import connect
from weir.server.disk.node_folder import NodeFolder
from weir.server.key_files import create_key_file
from weir.testing.nodes import start_node

HERE = Path(__file__).parent
#: Planted: searched in everything that Spark writes.
SECRET = "m4rked-p4ssword-of-ann"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a closed set by TLS: ann may read `doors` and write to `copies`."""
    folder = tmp_path_factory.mktemp("closed")
    data = folder / "data"
    ca = TestCa(folder / "ca", NodeFolder(data).found(2).system)
    files = ca.files(ca.issue("node/1"))
    (folder / "scratch").mkdir()
    create_key_file(folder / "keys")
    node = start_node(
        data, folder / "scratch", shards=1, certificate=files.certificate, key=files.key,
        trust=files.trust, plaintext="refuse", key_file=str(folder / "keys"),
    )  # fmt: skip
    with node:
        url = ca.url(node.port)
        with connect(url) as w:
            w.create_topic("doors", 2)
            w.create_topic("copies")
            with w.producer("doors") as producer:
                for n in range(20):
                    producer.send(b"%d" % n, partition=n % 2)
            w.access.create_user("root", "rr", ["admin"])
            rules = [
                AccessRule(("read",), "topic", "doors"),
                AccessRule(("publish",), "topic", "copies"),
            ]
            w.access.change_rules("query", rules)
            w.access.create_user("ann", SECRET, ["query"])
            w.access.create_token_key()
        with connect(of(url, "root"), password="rr") as w:
            w.access.set_mode("closed")
        yield url


def of(url: str, user: str) -> str:
    return url.replace("//", f"//{user}@")


def values(url: str, topic: str) -> set[bytes]:
    with (
        connect(of(url, "root"), password="rr") as w,
        w.reader(topic, follow=False) as reader,
    ):
        return {message.value for message in reader}


@pytest.mark.timeout(400)  # Spark starts for it alone
def test_what_spark_tells_holds_no_password_and_no_token(url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "login_query.py"), of(url, "ann"), str(tmp_path)],
        env={**os.environ, "WEIR_PASSWORD": SECRET},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:].decode(errors="replace")
    assert values(url, "copies") == {b"%d" % n for n in range(20)}
    told = {"stdout": done.stdout, "stderr": done.stderr} | {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    spelled = {SECRET, SECRET[::-1], quote(SECRET), SECRET.encode("utf-16-le").decode("latin-1")}
    # A token begins with the base64 of `{"alg":`.
    spelled.add("eyJhbGciOi")
    wanted = [word.encode("latin-1") for word in spelled] + [base64.b64encode(SECRET.encode())]
    assert [name for name, data in told.items() if any(word in data for word in wanted)] == []
    # What is searched is what Spark writes, in plain text.
    assert any(name.startswith("checkpoint/") for name in told)
    assert b"doors" in told["plans.txt"]
    assert b"c0ntrol-word" in told["pages.txt"]
    assert any(b"c0ntrol-word" in data for name, data in told.items() if "events/" in name)
    assert told["stderr"]


def test_a_file_has_the_password_of_a_query(url: str, spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    file.chmod(0o600)
    reader = spark.read.format("weir").option("url", url).option("user", "ann")
    reader = reader.option("passwordFile", str(file)).option("topic", "doors")
    rows = reader.load()
    assert {row.value for row in rows.collect()} == {b"%d" % n for n in range(20)}
    other = tmp_path / "other"  # a kept connection would not look at the first again
    other.write_text(SECRET)
    other.chmod(0o644)
    with pytest.raises(PySparkException, match="chmod 600") as caught:
        reader.option("passwordFile", str(other)).load().collect()
    assert SECRET not in str(caught.value)
    with pytest.raises(PySparkException, match="a password is no option") as caught:
        reader.option("password", SECRET).load()
    assert SECRET not in str(caught.value)
    with pytest.raises(PySparkException, match="log in"):
        spark.read.format("weir").option("url", url).option("topic", "doors").load().collect()
