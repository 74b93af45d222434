"""A device is told a code alone; the reference client says what it is about."""

from __future__ import annotations

import pytest

from weir import sync, testing
from weir.client.arguments import parse_url
from weir.device.client import Client
from weir.errors import UnknownTopic


def test_an_unknown_topic_is_named() -> None:
    with testing.node() as node, sync.connect(node.url) as w:
        ((host, port),) = parse_url(node.url)
        with pytest.raises(UnknownTopic, match=r"hello: the broker has no topic 'nowhere'"):
            Client(host, port, 7, 1, "nowhere", timeout=5)
        w.create_topic("doors")
        with Client(host, port, 7, 1, "doors", timeout=5) as client:
            with pytest.raises(UnknownTopic, match=r"no topic 'dors'.*`weir topic create dors`"):
                client.subscribe("crew", "dors")
            client.ping()
