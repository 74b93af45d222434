"""What verbs that measure print with `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weir.cli.output import print_object


def print_measured(schema: str, settings: object, results: Mapping[str, Any]) -> None:
    """Print the one object of a benchmark's `--json`, with the machine that it was measured on."""
    from weir_lab.bench.harness.machine import this_machine

    print_object(schema, {"machine": this_machine()}, settings, results)
