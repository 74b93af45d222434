"""`weir bench handlers`, `weir bench workers` and `weir bench readers`."""

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
    from weir_lab.bench.consumers.readers import Result as ReadByMany
    from weir_lab.bench.consumers.workers import Result as Worked


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


def workers(
    count: Annotated[int, typer.Option("--workers", help="At work in one process.")] = 16,
    messages: Annotated[int, typer.Option(help="Taken and acked one by one.")] = 400_000,
    batched: Annotated[int, typer.Option(help="Taken and acked in batches.")] = 1_600_000,
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    keys: Annotated[int, typer.Option(help="Keys of the messages, in turn.")] = 1_000,
    deadline: Annotated[str, typer.Option(help="Give up on each part after this long.")] = "2m",
    replicas: Replicas = 1,
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Messages a second that workers of one process share, take and ack: one by one and in batches.

    In a shared cluster and in a keyed one, over the same topic; and how soon all are at full speed.
    Exit code 1 if a message was lost, taken twice, changed, or taken before an earlier one of its
    key.
    """
    with usage("workers"):
        from weir_lab.bench.consumers.workers import Settings, measure
        from weir_lab.bench.harness.loop import run
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.sides.own import running_own

        plan = Settings(count, messages, batched, size, keys, seconds(deadline), folder, replicas)
        plan.check()
    schema = "weir.bench.workers/1"
    with stop_as_by_ctrl_c(), running_own(folder, replicas) as side:
        result = run(measure(side, plan, say))
    keep(record, schema, plan, result, [])
    finish(
        schema, [plan], [result], "messages_per_s", most=False, as_json=as_json, show=_show_worked
    )


def readers(
    count: Annotated[int, typer.Option("--readers", help="Each reads the whole topic.")] = 16,
    messages: Annotated[int, typer.Option(help="Of the topic.")] = 2_000_000,
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    deadline: Annotated[str, typer.Option(help="Give up on each part after this long.")] = "2m",
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Messages a second that each of many readers of one topic gets, which was filled before.

    The slowest reader counts. Exit code 1 if a reader lost a message, or was given one twice, out
    of order or changed.
    """
    with usage("readers"):
        from weir_lab.bench.consumers.readers import Settings, measure
        from weir_lab.bench.harness.loop import run
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.sides.own import running_own

        plan = Settings(count, messages, size, seconds(deadline), folder)
        plan.check()
    schema = "weir.bench.readers/1"
    with stop_as_by_ctrl_c(), running_own(folder) as side:
        result = run(measure(side, plan))
    keep(record, schema, plan, result, [])
    finish(schema, [plan], [result], "messages_per_s", most=False, as_json=as_json, show=_show_read)


def _show_read(result: ReadByMany) -> None:
    from weir.cli.output import print_table

    print_table(
        ("READERS", "MESSAGES/S EACH", "FASTEST", "ALL", "SERVER NS", "CLIENT NS", "FOREIGN"),
        [
            (
                result.readers,
                result.messages_per_s,
                result.fastest_per_s,
                result.all_per_s,
                result.server_ns,
                result.client_ns,
                result.foreign_cores,
            )
        ],
    )
    print(f"lost {result.lost}, repeated {result.repeated}, corrupt {result.corrupt}")


def _show_worked(result: Worked) -> None:
    from weir.cli.output import print_table

    parts = (result.shared, result.keyed, result.shared_batches, result.keyed_batches)
    print_table(
        ("CLUSTER", "TAKEN", "MESSAGES/S", "CLIENT US", "SERVER US", "FULL SPEED S", "FOREIGN"),
        [
            (
                one.mode,
                "one by one" if one.by_message else "in batches",
                one.messages_per_s,
                one.client_us,
                one.server_us,
                one.full_speed_s,
                one.foreign_cores,
            )
            for one in parts
        ],
    )
    print(
        f"by key a message costs {result.keyed_times:.2f} times the processor time, in batches "
        f"{result.keyed_batches_times:.2f} times; lost {result.lost}, repeated {result.repeated}"
    )


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
