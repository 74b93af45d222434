"""weir's demo, benchmarks, chaos, simulated worlds and proofs."""

__version__ = "0.1.0"
