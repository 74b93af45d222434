"""Clients to write by, one a process and system, kept from task to task.

Spark forks its Python workers and uses each for many tasks, and module globals live on between
them. The process id is part of the key: a client does not outlive a fork.
"""

from __future__ import annotations

from weir.client.connection.system import SYSTEM
from weir.client.sync.client import Client, connect
from weir.spark.blocking_client import ask
from weir.spark.options import Hosts

_kept: dict[tuple[Hosts, int], Client] = {}


def client_of(hosts: Hosts) -> Client:
    """Return this process's client of a system, connected; it dials again by itself.

    Raises `Disconnected` if no host can be reached: within seconds if none has an address.
    """
    key = hosts, SYSTEM.get().process()
    if key not in _kept:
        ask(hosts, lambda client: client.welcome)  # finds out soon about a name that is misspelt
        _kept[key] = connect(_url(hosts), name=f"spark-sink-{key[1]}")
    return _kept[key]


def forget_all() -> None:
    """Close all clients of this process."""
    here = SYSTEM.get().process()
    for key in [key for key in _kept if key[1] == here]:
        _kept.pop(key).close()


def _url(hosts: Hosts) -> str:
    places = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)
    return f"weir://{','.join(places)}"
