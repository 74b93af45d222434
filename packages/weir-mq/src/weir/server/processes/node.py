"""A node: one process, or a supervisor and a process for each shard.

See `weir.server.processes.assembly`, and `weir.server.processes.supervisor` with
`weir.server.processes.shard_process`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from weir.server.config.sections import BadConfig, Config, metrics_ports
from weir.server.disk.node_folder import NodeFolder, Started
from weir.server.exit_codes import EXIT_DISK
from weir.server.network.addresses import check_free

log = logging.getLogger(__name__)


def run(config: Config, started: Started | None = None) -> bool:
    """Run a node until SIGTERM or SIGINT, then drain. Returns False if draining took too long.

    `started` is told host and port once clients may connect. Raises `WeirError` if the folder or
    a log cannot be used, or a shard cannot be kept running, and `OSError` if the port cannot.
    """
    folder = NodeFolder(config.node.data)
    if folder.founded() is None:
        check_free(config)
    founded = folder.found(config.node.logs)
    shards = min(config.node.shards or os.cpu_count() or 1, founded.logs)
    if config.node.shards > shards:
        log.warning(
            "%d shards were requested, and %d run: each needs one of the %d logs that the "
            "node was created with",
            config.node.shards,
            shards,
            founded.logs,
            extra={"fields": {"shards": shards, "logs": founded.logs}},
        )
    if problem := metrics_ports(config, shards):
        raise BadConfig([problem])
    # A supervisor needs nothing of what a shard is made of, and its shards wait for it.
    if shards == 1:
        from weir.server.processes.assembly import serve
        from weir.server.processes.event_loop import run_loop

        return run_loop(serve(config, started))
    from weir.host.supervision import DiskGone
    from weir.server.processes.supervisor import supervise

    try:
        return asyncio.run(supervise(config, founded, shards, started))
    except DiskGone as error:
        log.critical("%s", error)
        sys.exit(EXIT_DISK)
