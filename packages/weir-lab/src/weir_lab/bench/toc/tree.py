"""A network in a tree of network namespaces, whose hosts run the processes of a benchmark."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weir_lab.bench.toc.crew import PATIENCE_SECONDS, Crew, CrewFailed, Shape, crew
from weir_toc.errors import TocError
from weir_toc.net.namespaces import check_needs
from weir_toc.places import Place

_NET = "net"


def missing_for_trees() -> str:
    """What this machine lacks for a tree of namespaces; empty if it can build one."""
    try:
        check_needs()
    except TocError as error:
        return str(error)
    return ""


def missing_for(place: Place) -> str:
    """Why nothing can run at a place here; empty if it can.

    A host representative runs on loopback where there can be no tree.
    """
    if place is Place.HOST:
        return ""
    if why := missing_for_trees():
        return why
    if place is Place.XDP and find_spec("weir_toc.xdp.__main__") is None:
        return "weir-toc has no program for switches yet"
    return ""


@contextlib.contextmanager
def tree_crew(
    folder: Path, shape: Shape, place: Place, hosts: int, loss: float = 0.0
) -> Iterator[Crew]:
    """A network that runs in a tree, in which each device loses a share of what it sends.

    Worker number N runs in host N, by `Crew.start_in`.
    """
    with crew(folder, shape) as made:
        made.start(
            _NET, "-m", "weir_toc", "net", "up", "--json", "--hosts", str(hosts),
            "--racks", str(shape.racks), "--spines", str(shape.spines),
            "--cores", str(shape.cores), "--members", str(shape.members),
            "--interval-ms", str(shape.interval_ms), "--place", place.value,
            "--loss", str(100 * loss), "--folder", str(folder / _NET),
        )  # fmt: skip
        try:
            made.move_in(_wait_until_up(made))
            yield made
        finally:
            made.end_politely(_NET)


def _wait_until_up(made: Crew) -> dict[str, Any]:
    """Return what the tree prints once it is up."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        found = json.loads(made.next_line(_NET, "up", until))
        if found["event"] == "up":
            return dict(found)
    raise CrewFailed("the tree of namespaces is not up in time")
