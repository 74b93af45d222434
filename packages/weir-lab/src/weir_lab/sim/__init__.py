"""The simulated host: whole systems of the pure core in one seeded, virtual world.

`weir_lab.sim.run.run_seed(seed)` is the door; everything in here is deterministic for a seed.
"""
