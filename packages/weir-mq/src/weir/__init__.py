"""weir, a message broker. What applications need:

    connect, sync      the client, and the same without async
    at, last           where a reader begins
    App, Reject        handlers of messages, and how they refuse one for good
    Inbox              effects in a database that happen once
    Backoff            how what failed is tried again: a connection, a message
    Message, Batch     what comes out
    errors             what goes wrong, and what to do about it
    testing            a node in memory for your tests

The names load on first use (PEP 562), so that a pure room such as `weir_raft` can be imported
without asyncio or the client.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "App",
    "Backoff",
    "Batch",
    "Inbox",
    "Message",
    "Reject",
    "__version__",
    "at",
    "connect",
    "errors",
    "last",
    "sync",
    "testing",
]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from weir import errors, testing
    from weir.app.app import App
    from weir.app.core.retry_policy import Reject
    from weir.app.inbox import Inbox
    from weir.client.arguments.positions import at, last
    from weir.client.client import connect
    from weir.client.core.durations import Backoff
    from weir.client.sync import client as sync
    from weir.model.batch import Batch
    from weir.model.message import Message
else:
    # A type checker must not see __getattr__: it would take every misspelt name for a real one.

    _HOMES = {
        "App": "weir.app.app",
        "Backoff": "weir.client.core.durations",
        "Batch": "weir.model.batch",
        "Inbox": "weir.app.inbox",
        "Message": "weir.model.message",
        "Reject": "weir.app.core.retry_policy",
        "at": "weir.client.arguments.positions",
        "connect": "weir.client.client",
        "last": "weir.client.arguments.positions",
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
