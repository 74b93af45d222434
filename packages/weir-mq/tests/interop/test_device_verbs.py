"""`weir device`: what an operator sees of hubs, and how one begins anew."""

from __future__ import annotations

import io
import json

import pytest

import weir
from weir.cli.main import main
from weir.device import Client
from weir.errors import Fenced
from weir.testing.nodes import Node, running_node

HUB = 0xA17


def publish(node: Node, boot: int, sns: list[int], values: int, hub: int = HUB) -> None:
    with Client(node.host, node.port, hub=hub, boot=boot, topic="doors") as one:
        for sn in sns:
            for _ in range(values):
                one.publish_sequenced(b"open", sn=sn)


def says(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_hub_is_listed_shown_and_forgotten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_node(segment_mib=32, spares=0, shards=2) as node:
        url = ("--url", node.url)
        with weir.sync.connect(node.url) as w:
            w.create_topic("doors", partitions=3)
        none = "no hub has published to doors with a sequence\n"
        assert says(capsys, "device", "list", "doors", *url)[:2] == (0, none)
        publish(node, boot=7, sns=[0, 3], values=2)
        publish(node, boot=1, sns=[0], values=1, hub=5)

        code, out, _ = says(capsys, "device", "list", "doors", *url)
        assert code == 0
        rows = [line.split() for line in out.splitlines()]
        assert rows[0] == ["HUB", "PARTITION", "DEVICES", "BOOT", "LAST", "OFFSET"]
        assert {(row[0], row[2], row[3].replace(",", "")) for row in rows[1:]} == {
            ("0xa17", "2", "7"),
            ("0x5", "1", "1"),
        }
        _, out, _ = says(capsys, "device", "list", "doors", "--json", *url)
        hubs = json.loads(out)["hubs"]
        assert {(one["hub"], one["devices"]) for one in hubs} == {(HUB, 2), (5, 1)}
        _, out, _ = says(capsys, "device", "show", "doors", "0xa17", "--json", *url)
        shown = json.loads(out)["devices"]
        assert [(one["sn"], one["next_sequence"]) for one in shown] == [(0, 2), (3, 2)]
        assert says(capsys, "device", "show", "doors", "2583", *url)[1].count("\n") == 3

        with pytest.raises(Fenced):
            publish(node, boot=1, sns=[0], values=1)
        monkeypatch.setattr("sys.stdin", io.StringIO("0xa18\n"))
        assert says(capsys, "device", "forget", "doors", "0xa17", *url)[0] == 1, "another was typed"
        code, out, _ = says(capsys, "device", "forget", "doors", "0xa17", "--yes", *url)
        assert (code, out) == (0, "hub 0xa17 of doors is forgotten, with 2 devices\n")
        with pytest.raises(Fenced):
            publish(node, boot=7, sns=[0], values=1)
        publish(node, boot=8, sns=[0], values=2)
        _, out, _ = says(capsys, "device", "show", "doors", "0xa17", "--json", *url)
        (one,) = json.loads(out)["devices"]
        assert (one["generation"], one["boot"], one["next_sequence"]) == (0, 8, 2)
        _, out, _ = says(capsys, "device", "list", "doors", "--json", *url)
        assert {one["hub"] for one in json.loads(out)["hubs"]} == {HUB, 5}


@pytest.mark.parametrize("hub", ["door", "-1", "0x1ffffffffffffffff", "1.5"])
def test_what_is_no_hub_is_refused_with_words(hub: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = says(capsys, "device", "show", "doors", "--", hub)
    assert code == 2
    assert "is no hub: give a number, as 2583 or 0xa17" in err
