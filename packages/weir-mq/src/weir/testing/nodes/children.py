"""Python processes of a measurement or the demo: they run this very weir, as a node's shards do."""

from __future__ import annotations

from weir.server.processes.interpreter import environment as environment
from weir.server.processes.interpreter import python as python
