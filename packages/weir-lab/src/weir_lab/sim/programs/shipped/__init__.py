"""Programs of the client as it ships, each in a process of the world.

`process` is a process of `weir.testing.simulator.clients` that can lag, stand still and be killed.
"""
