"""`weir cluster redrive` against a node in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

import weir as facade
from weir import sync, testing
from weir.cli.main import main
from weir.client.consumer.settlement import bury


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


def test_dead_letters_go_back(node: testing.Node, capsys: pytest.CaptureFixture[str]) -> None:
    def weir(*words: str) -> tuple[int, str, str]:
        code = main(["cluster", "redrive", *words, "--url", node.url])
        out, err = capsys.readouterr()
        return code, out, err

    async def die() -> None:
        async with facade.connect(node.url) as client:
            for name in ("doors", "gates", "dead"):
                await client.create_topic(name)
            for offset in range(3):
                topic = "doors" if offset < 2 else "gates"
                message = facade.Message(b"%d" % offset, topic=topic, partition=0, offset=offset)
                await bury(client, "dead", message, "ledger", 5, "no database")

    asyncio.run(die())
    assert weir("billing", "--topic", "dead")[1] == (
        "no dead letter of cluster billing is left in dead\n3 are other clusters', and stay\n"
    )
    code, out, _ = weir("ledger", "--topic", "dead")
    assert (code, out.splitlines()[0]) == (0, "2 went back to doors")
    assert "1 went back to gates" in out
    code, out, _ = weir("ledger", "--topic", "dead", "--json")
    found = json.loads(out)
    assert (found["messages"], found["topics"], found["others"]) == (0, {}, 0)
    code, _, err = weir("ledger", "--topic", "nowhere")
    assert (code, "no topic 'nowhere'" in err) == (1, True)
    with sync.connect(node.url) as client:
        assert [m.value for m in client.reader("doors", follow=False)] == [b"0", b"1"]
        assert [m.headers for m in client.reader("gates", follow=False)] == [{}]


def test_what_is_no_dead_letter_is_left_to_the_cluster(
    node: testing.Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever names the topic that the cluster reads must not have its messages done by that."""
    with sync.connect(node.url) as client:
        client.create_topic("doors")
        for value in ("1", "2", "3"):
            client.publish("doors", value)
        words = ["cluster", "redrive", "ledger", "--topic", "doors", "--url", node.url]
        assert main(words) == 1
        out, err = capsys.readouterr()
        assert (out, "offset 0 of doors/0 is no dead letter" in err) == ("", True)
        assert client.clusters("doors") == [], "none is made by that"
        seek = ["cluster", "seek", "doors", "ledger", "--to", "earliest", "--create"]
        assert main([*seek, "--url", node.url]) == 0
        capsys.readouterr()
        assert main(words) == 1
        out, err = capsys.readouterr()
        assert (out, "offset 0 of doors/0 is no dead letter" in err) == ("", True)
        (cluster,) = client.clusters("doors")
        assert (cluster.lag, cluster.granted) == (3, 0)
        with client.consumer("doors", cluster="ledger") as consumer:
            for value in (b"1", b"2", b"3"):
                with next(consumer) as message:
                    assert (message.value, message.attempts) == (value, 1)
