"""A node in memory for the tests of applications: `weir.testing.node`.

    with weir.testing.node() as node:            # or `async with`
        async with weir.connect(node.url) as w:  # or `weir.sync.connect`, or a device
            ...
            node.restart()                       # a power cut: what was confirmed is still there
            node.advance(31)                     # seconds: leases end now, not in a while

It is the broker itself, on a free port of this machine, in a thread of its own. It writes no file
and rolls no dice.

The names load on first use (PEP 562): the simulator, which lies below, needs no server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["Node", "node"]

if TYPE_CHECKING:
    from weir.testing.memory_node import Node, node
else:
    _HOMES = {"Node": "weir.testing.memory_node", "node": "weir.testing.memory_node"}

    def __getattr__(name: str) -> object:
        """Load a public name on first use; AttributeError for any other name."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'weir.testing' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    """List the public names, those not loaded yet included."""
    return sorted({*globals(), *__all__})
