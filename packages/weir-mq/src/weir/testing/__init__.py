"""For the tests of applications: a node in memory, and a world of nodes and faults in virtual time.

    with weir.testing.node() as node:            # or `async with`
        async with weir.connect(node.url) as w:  # or `weir.sync.connect`, or a device
            ...
            node.restart()                       # a power cut: what was confirmed is still there
            node.advance(31)                     # seconds: leases end now, not in a while

`node` is the broker itself, on a free port of this machine, in a thread of its own. It writes no
file and uses no random numbers.

    async def scenario(world):
        async with world.connect() as w:         # `weir.connect`, unmodified
            await w.create_topic("orders")
            world.start(make_app)                # a process: the seed kills and restarts it
            ...
            world.heal()                         # faults end; now check the result

    weir.testing.world(seed=7, nodes=3).run(scenario)

`world` plays your application, the client that ships, and whole nodes on disks, networks and clocks
that fail, by a seed: docs/how-to/simulate.md.

The names load on first use (PEP 562): neither the simulator nor pytest is needed for a node.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["Node", "World", "node", "world"]

if TYPE_CHECKING:
    from weir.testing.memory_node import Node, node
    from weir.testing.worlds import World, world
else:
    _HOMES = {
        "Node": "weir.testing.memory_node",
        "World": "weir.testing.worlds",
        "node": "weir.testing.memory_node",
        "world": "weir.testing.worlds",
    }

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
