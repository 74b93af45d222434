"""A seeded world of virtual time: nodes on disks, networks and clocks that fail, and its faults.

`world` is the heap of events, `network` and `disk` what fails, `brokerset` the nodes, `nemesis`
what breaks them, `clients` the processes that reach them over the shipped client.
What happens is decided by the seed alone. Workloads and what judges them are in `weir_lab.sim`.
"""
