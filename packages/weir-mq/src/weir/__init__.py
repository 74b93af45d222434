"""weir, a message broker. What applications need:

    connect, sync      the client, and the same without async
    Client             what `connect` gives: publish, produce, read, consume, administer
    Producer, ProducerOptions, Receipt
                       many messages to one topic, how they are sent, and where one is
    Reader, ReaderOptions, at, last
                       messages by offset; what is read, and where it begins
    Consumer, ConsumerOptions, LeasedMessage, LeasedBatch
                       messages as work, shared by a cluster; how they are taken, and settled
    Message, Origin, Batch
                       what comes out, and the device that sent it
    App, Reject        handlers of messages, and how they refuse one for good
    Inbox              effects in a database that happen once
    Backoff            how what failed is tried again: a connection, a message
    errors             what goes wrong, and what to do about it
    testing            a node in memory for your tests

The names load on first use (PEP 562), so that a pure room such as `weir_raft` can be imported
without asyncio or the client.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from weir.version import __version__

__all__ = [
    "App",
    "Backoff",
    "Batch",
    "Client",
    "Consumer",
    "ConsumerOptions",
    "Inbox",
    "LeasedBatch",
    "LeasedMessage",
    "Message",
    "Origin",
    "Producer",
    "ProducerOptions",
    "Reader",
    "ReaderOptions",
    "Receipt",
    "Reject",
    "__version__",
    "at",
    "connect",
    "errors",
    "last",
    "sync",
    "testing",
]

if TYPE_CHECKING:
    from weir import errors, testing
    from weir.app.app import App
    from weir.app.inbox import Inbox
    from weir.client.client import Client, connect
    from weir.client.consumer.consumer import Consumer, LeasedBatch, LeasedMessage
    from weir.client.consumer.subscription import ConsumerOptions
    from weir.client.core.retries import Backoff
    from weir.client.producer.producer import Producer
    from weir.client.producer.receipts import Receipt
    from weir.client.producer.sender import ProducerOptions
    from weir.client.reader.options import ReaderOptions, at, last
    from weir.client.reader.reader import Reader
    from weir.client.sync import client as sync
    from weir.errors import Reject
    from weir.model.batch import Batch
    from weir.model.message import Message, Origin
else:
    # A type checker must not see __getattr__: it would take every misspelt name for a real one.

    _HOMES = {
        "App": "weir.app.app",
        "Backoff": "weir.client.core.retries",
        "Batch": "weir.model.batch",
        "Client": "weir.client.client",
        "Consumer": "weir.client.consumer.consumer",
        "ConsumerOptions": "weir.client.consumer.subscription",
        "Inbox": "weir.app.inbox",
        "LeasedBatch": "weir.client.consumer.consumer",
        "LeasedMessage": "weir.client.consumer.consumer",
        "Message": "weir.model.message",
        "Origin": "weir.model.message",
        "Producer": "weir.client.producer.producer",
        "ProducerOptions": "weir.client.producer.sender",
        "Reader": "weir.client.reader.reader",
        "ReaderOptions": "weir.client.reader.options",
        "Receipt": "weir.client.producer.receipts",
        "Reject": "weir.errors",
        "at": "weir.client.reader.options",
        "connect": "weir.client.client",
        "last": "weir.client.reader.options",
    }
    _MODULES = {
        "errors": "weir.errors",
        "sync": "weir.client.sync.client",
        "testing": "weir.testing",
    }

    def __getattr__(name: str) -> object:
        """Load a public name on first use; AttributeError for any other name."""
        if name in _MODULES:
            return import_module(_MODULES[name])
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'weir' has no attribute {name!r}")
        # Kept as a plain global, so that only the first use pays for the look-up.
        value = globals()[name] = getattr(import_module(home), name)
        return value


if "WEIR_LOADED_MODULES" in os.environ:
    # `make proof` asks which modules a measurement's processes load. By name: no floor knows this.
    import_module("weir_lab.proofs.loaded_modules").record_imports(
        os.environ["WEIR_LOADED_MODULES"]
    )


def __dir__() -> list[str]:
    """List the public names, those not loaded yet included."""
    return sorted({*globals(), *__all__})
