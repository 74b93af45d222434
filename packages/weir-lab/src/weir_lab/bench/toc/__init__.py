"""Benchmarks of weir-toc: real processes that exchange packets on loopback."""
