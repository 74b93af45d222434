"""`python -m weir_toc`: the same as `weir-toc`."""

from weir_toc.cli import run

run()
