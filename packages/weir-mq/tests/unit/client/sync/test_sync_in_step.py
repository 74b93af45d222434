"""`weir.sync` has every public name of the async client, with the same parameters."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from weir.client import client, sinks
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer import consumer
from weir.client.core.retries import Backoff
from weir.client.producer import producer, receipts
from weir.client.reader import reader
from weir.client.sync import client as sync

PAIRS: list[tuple[type, type]] = [
    (client.Client, sync.Client),
    (producer.Producer, sync.Producer),
    (reader.Reader, sync.Reader),
    (consumer.Consumer, sync.Consumer),
    (consumer.LeasedMessage, sync.LeasedMessage),
    (consumer.LeasedBatch, sync.LeasedBatch),
    (sinks.Sink, sync.Sink),
    (sinks.SinkWriter, sync.SinkWriter),
    (receipts.PendingMessage, sync.PendingMessage),
    (receipts.PendingBatch, sync.PendingBatch),
]
#: What other parts of weir call: no part of what users call.
INSIDE = {
    # The command line's verbs that run until Ctrl-C, which wait in an event loop.
    client.Client: {"is_connected", "wait_without_end", "nodes"},
    receipts.PendingBatch: {
        "moved",
        "part_of",
        "pinned",
        "resolve",
        "result",
        "result_of_parts",
        "within",
    },
    receipts.PendingMessage: {"batch", "receipt"},
    # What is settled message by message is settled in the event loop's own thread.
    consumer.Consumer: {"deliveries"},
}
RENAMED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def names_of(kind: type) -> set[str]:
    """Public names of a class, and those it gives its objects."""
    public = {name for name in dir(kind) if not name.startswith("_")}
    renamed = {new for old, new in RENAMED.items() if hasattr(kind, old) or hasattr(kind, new)}
    return public | renamed


def given_to(thing: object) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "twin"), PAIRS, ids=lambda kind: kind.__module__)
def test_the_twin_has_every_name_and_parameter(kind: type, twin: type) -> None:
    missing = names_of(kind) - INSIDE.get(kind, set()) - names_of(twin)
    assert not missing, f"weir.sync.{twin.__name__} lacks {sorted(missing)}"
    for name in sorted(names_of(twin) - set(RENAMED.values())):
        of, its = inspect.getattr_static(kind, name, None), inspect.getattr_static(twin, name)
        if not callable(its):
            assert not callable(of), f"{twin.__name__}.{name} is a property, not a method"
            continue
        theirs = inspect.signature(getattr(kind, name)).parameters
        assert inspect.signature(its).parameters == theirs, f"{twin.__name__}.{name}"


def test_the_twin_has_what_objects_are_given() -> None:
    network = NetworkClient([], name="", retry=Backoff(), request_timeout=1.0, random=None)  # type: ignore[arg-type]
    w = client.Client(network)
    made: list[tuple[Any, type]] = [
        (w, sync.Client),
        (w.producer("t"), sync.Producer),
        (w.reader("t"), sync.Reader),
        (w.consumer("t", cluster="c"), sync.Consumer),
    ]
    asyncio.run(w.close())
    for thing, twin in made:
        missing = given_to(thing) - names_of(twin)
        assert not missing, f"weir.sync.{twin.__name__} lacks {sorted(missing)}"


def test_both_doors_open_alike() -> None:
    assert (
        inspect.signature(sync.connect).parameters == inspect.signature(client.connect).parameters
    )


def test_a_method_that_only_the_async_client_has_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fetch(self: client.Client) -> None:
        """Be new."""

    monkeypatch.setattr(client.Client, "fetch", fetch, raising=False)
    with pytest.raises(AssertionError, match=r"lacks .*fetch"):
        test_the_twin_has_every_name_and_parameter(client.Client, sync.Client)
