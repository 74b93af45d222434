"""`weir bench handlers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weir.client.core.retries import seconds
from weir_lab.cli.bench_runs import (
    Folder,
    Json,
    Record,
    Replicas,
    finish,
    say,
    stop_as_by_ctrl_c,
    usage,
)

if TYPE_CHECKING:
    from weir_lab.bench.consumers.handlers import Result


def handlers(
    messages: Annotated[int, typer.Option(help="Handled one by one.")] = 400_000,
    pulled: Annotated[int, typer.Option(help="Pulled in batches, and read; 0: none.")] = 4_000_000,
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    concurrency: Annotated[int, typer.Option(min=1, help="Handlers at work at once.")] = 16,
    deadline: Annotated[str, typer.Option(help="Give up on each part after this long.")] = "5m",
    replicas: Replicas = 1,
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Messages a second through the handlers of one process, each checked and acked.

    And pulls of a cluster in whole batches, acked, beside a plain reader of the same topic. Exit
    code 1 if a message was lost, handled twice, or changed.
    """
    with usage("handlers"):
        from weir_lab.bench.consumers.handlers import Settings, measure
        from weir_lab.bench.harness.loop import run
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.sides.own import running_own

        plan = Settings(messages, pulled, size, concurrency, seconds(deadline), folder, replicas)
        plan.check()
    schema = "weir.bench.handlers/1"
    with stop_as_by_ctrl_c(), running_own(folder, replicas) as side:
        result = run(measure(side, plan, say))
    keep(record, schema, plan, result, [])
    finish(schema, [plan], [result], "messages_per_s", most=False, as_json=as_json, show=_show)


def _show(result: Result) -> None:
    from weir.cli.output import print_table

    print_table(
        ("HANDLED/S", "PULLED/S", "READ/S", "PULLED OF READ", "LOST", "REPEATED", "CORRUPT"),
        [
            (
                result.messages_per_s,
                result.pulled_per_s,
                result.read_per_s,
                result.pulled_of_read,
                result.lost,
                result.repeated,
                result.corrupt,
            )
        ],
    )
    print(
        f"{result.messages:,} messages, one by one: {result.seconds:.2f} s, of which the handlers' "
        f"process computed {result.handler_cpu_s:.2f} s"
    )
