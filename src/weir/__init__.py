"""weir, a message broker: `connect`, `Message`, `Batch` and `errors` are what applications need.

The names load on first use (PEP 562), so that a pure room such as `weir.raft` can be imported
without asyncio or the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["Batch", "Message", "__version__", "connect", "errors"]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from weir import errors
    from weir.client.connect import connect
    from weir.model.batch import Batch
    from weir.model.message import Message
else:
    # A type checker must not see __getattr__: it would take every misspelt name for a real one.

    _HOMES = {
        "Batch": "weir.model.batch",
        "Message": "weir.model.message",
        "connect": "weir.client.connect",
    }

    def __getattr__(name: str) -> object:
        """Load a public name on first use; AttributeError for any other name."""
        if name == "errors":
            return import_module("weir.errors")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'weir' has no attribute {name!r}")
        # Kept as a plain global, so that only the first use pays for the look-up.
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    """List the public names, those not loaded yet included."""
    return sorted({*globals(), *__all__})
