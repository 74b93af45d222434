"""A node in memory for the tests of applications: `weir.testing.node`.

    with weir.testing.node() as node:            # or `async with`
        async with weir.connect(node.url) as w:  # or `weir.sync.connect`, or a device
            ...
            node.restart()                       # a power cut: what was confirmed is still there
            node.advance(31)                     # seconds: leases end now, not in a while

It is the broker itself, on a free port of this machine, in a thread of its own. It writes no file
and rolls no dice.
"""

from weir.testing.memory_node import Node, node

__all__ = ["Node", "node"]
