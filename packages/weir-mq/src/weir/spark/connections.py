"""One connection to the broker a process, kept from task to task, and made again when it breaks.

Spark forks its Python workers and uses each for many tasks, and module globals live on between
them: a connection made by one task serves the next. The process id is part of the key, because a
forked child that used its parent's socket would take the parent's answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from weir.client.connection.system import SYSTEM
from weir.client.core.durations import Backoff
from weir.errors import BadBatch, Disconnected, Refused, RemoteProtocolError, WeirError
from weir.spark.blocking_client import BlockingClient
from weir.spark.options import Hosts

#: How long a question is asked again while a broker restarts or a leader moves.
PATIENCE = 30.0
#: How long one call may take before the broker counts as gone.
CALL_TIMEOUT = 10.0

#: After so many refusals a host is left for another: it may be cut off from those that lead.
_TRIES_A_HOST = 8

T = TypeVar("T")

_kept: dict[tuple[Hosts, int], BlockingClient] = {}
_backoff = Backoff(first=0.05, most=1.0)


def ask(hosts: Hosts, question: Callable[[BlockingClient], T], patience: float = PATIENCE) -> T:
    """Return what `question` returns over the kept connection; ask again if that may help.

    A lost connection, a busy or moving broker and bytes that changed on the way are tried again for
    `patience` seconds, hosts in turn; every other error is raised at once.
    """
    system = SYSTEM.get()
    deadline = system.monotonic() + patience
    attempt = 0
    while True:
        try:
            return question(_connection(hosts, attempt))
        except WeirError as error:
            if not _passes(error):
                raise
            attempt += 1
            if not isinstance(error, Refused) or not attempt % _TRIES_A_HOST:
                forget(hosts)
            pause = _backoff.delay(attempt, system.dice().random())
            if system.monotonic() + pause >= deadline:
                error.add_note(
                    f"tried for {patience:g} s: check that the broker is up, then start the query "
                    "again; it continues from its checkpoint"
                )
                raise
        system.sleep(pause)


def forget(hosts: Hosts) -> None:
    """Close this process's connection, if there is one; the next question makes another."""
    client = _kept.pop((hosts, SYSTEM.get().process()), None)
    if client is not None:
        client.close()


def _connection(hosts: Hosts, attempt: int) -> BlockingClient:
    process = SYSTEM.get().process()
    key = (hosts, process)
    client = _kept.get(key)
    if client is None:
        host, port = hosts[attempt % len(hosts)]
        name = f"spark-{process}"
        client = _kept[key] = BlockingClient(host, port, CALL_TIMEOUT, name, _memory)
    return client


def _memory(size: int) -> memoryview:
    """Return memory that nobody has filled with zeros: a portion of megabytes overwrites it all."""
    return np.empty(size, np.uint8).data


def _passes(error: WeirError) -> bool:
    """Tell whether the same question may be answered if it is asked again."""
    if isinstance(error, Refused):
        return error.retryable
    return isinstance(error, Disconnected | RemoteProtocolError | BadBatch)
