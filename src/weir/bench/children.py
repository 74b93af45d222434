"""Python processes of a measurement or the demo: they run this very weir, as a node's shards do."""

from __future__ import annotations

from weir.server.children import environment as environment
from weir.server.children import python as python
