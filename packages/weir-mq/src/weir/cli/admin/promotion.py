"""`weir topology promote`: a core set goes on alone, whose home set is lost for good."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from weir.cli.admin.devices import AsJson
from weir.cli.connection import DEFAULT_URL, Url, connected
from weir.errors import Disconnected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.client.promotion import GroupLoss, PromotionPlan

R = TypeVar("R")


class _Operator:
    """How the command logs in: as the user of the URL, or by a file in the folder of a node."""

    def __init__(self, context: typer.Context, url: str, data: Path | None) -> None:
        source = context.get_parameter_source("url")
        is_given = source is not None and source.name == "COMMANDLINE"
        # Unless it is given, the folder says where its node is reached, and no variable.
        self._url = url if data is None or is_given else ""
        self._data = data
        self.told = {"url": url} if data is None else {"data": str(data)}

    def do(self, work: Callable[[Client], Awaitable[R]]) -> R:
        """Connect, do `work`, close; return what it returned."""
        if self._data is not None:
            from weir.cli.access.rescue import rescued

            return rescued(self._data, work, self._url)
        try:
            return connected(self._url, work)
        except Disconnected as error:
            raise Disconnected(
                f"{error}. If the set is not open, give --data on the machine of a node of the set "
                "to be promoted: no user can log in without home"
            ) from error


def promote(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="SET", help="The set, by its name or id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the possible loss, and change nothing.")
    ] = False,
    without: Annotated[
        list[int] | None,
        typer.Option(metavar="NODE", help="Go on without this node of the set, for good."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Do it although nodes of the other set answer."),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The data folder of a node of the set on this machine. Needed in a set that is "
            "not open: the command writes a file there instead of logging in as a user."
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Let the other one of two core sets go on alone, because home is lost for good.

    It prints what may be lost, and asks. All nodes of other sets are removed: one that comes back
    serves nothing any more. Give --url a node of the set. Users cannot log in without home: where
    that is needed, give --data instead, on the machine of a node of the set.
    """
    from weir.cli.output import print_json, told_while, typed

    async def look(client: Client) -> PromotionPlan:
        return await _plan(client, name, without or (), is_patient=not (force or dry_run))

    async def work(client: Client) -> list[tuple[str, int]]:
        done = client.topology.promote(plan, forced=force)
        return await told_while("waiting for leaders", done)

    operator = _Operator(context, url, data)
    plan = operator.do(look)
    if not as_json:
        for line in _told(plan):
            print(line)
    if plan.others and not (force or plan.is_done):
        _tell_others(plan)
        raise typer.Exit(1)
    is_agreed = dry_run or yes or plan.is_done
    if not is_agreed and not typed(
        "These losses are final. Type the name of the set", name, "changed"
    ):
        raise typer.Exit(1)
    waiting = [] if dry_run else operator.do(work)
    if as_json:
        print_json("weir.topology-promote/1", operator.told, _results(plan, dry_run, waiting))
    elif dry_run:
        print("nothing was changed")
    else:
        print(f"set {plan.name or plan.brokerset} is home, in lineage {plan.lineage}")
    for topic, partition in waiting:
        what = f"partition {partition} of {topic}" if topic else "the registry"
        print(f"{what} has no leader yet", file=sys.stderr)
    if waiting:
        raise typer.Exit(1)


async def _plan(
    client: Client, name: str, without: Sequence[int], *, is_patient: bool
) -> PromotionPlan:
    from weir.cli.output import told_while
    from weir.client.promotion import ALONE_WITHIN

    planned = client.topology.plan_promotion(name, without)
    plan = await told_while("asking the nodes of the set", planned)
    if not plan.others or plan.is_done or not is_patient:
        return plan
    # Those that were just stopped count as there until their links are seen to be broken.
    planned = client.topology.plan_promotion(name, without, wait=ALONE_WITHIN)
    return await told_while(f"waiting for node {_numbers(plan.others)} to be gone", planned)


def _numbers(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def _tell_others(plan: PromotionPlan) -> None:
    print(
        f"node {_numbers(plan.others)} of the other set answers: stop it first, or give --force, "
        "after which it serves nothing any more",
        file=sys.stderr,
    )


def _told(plan: PromotionPlan) -> Iterator[str]:
    """Yield the lines that say what may be lost."""
    if plan.is_done:
        yield f"set {plan.name or plan.brokerset} was promoted before (lineage {plan.lineage})"
        return
    yield f"set {plan.name or plan.brokerset} would go on alone with nodes {_numbers(plan.nodes)}"
    for one in plan.losses:
        yield f"  {_where(one)}: {_words(one)}"
    for node in plan.starting:
        yield f"  node {node} was started since: its copies of topics are not known yet"
    for topic, partition in plan.absent:
        yield f"  {topic}/{partition}: all of it, for no node of the set has a copy"


def _where(one: GroupLoss) -> str:
    return "registry" if one.partition < 0 else f"{one.topic}/{one.partition}"


def _words(one: GroupLoss) -> str:
    """Say what may be lost of a group."""
    if one.is_whole:
        return "nothing, a node of the set leads it"
    words = []
    if one.partition >= 0:
        words.append(f"messages at offset {one.offset:,} or above")
        if one.stamp_ms:
            words.append(f"published after {_time(one.stamp_ms)}")
    else:
        words.append("topics, users and settings that were changed last")
    if one.missing:
        words.append(f"{one.missing:,} entries of it are known to be lost")
    if one.silent_ms >= 0:
        words.append(f"home was last heard of {one.silent_ms / 1_000:,.1f} s ago")
    else:
        words.append("when home was last heard of is not known")
    return ", ".join(words)


def _time(stamp_ms: int) -> str:
    return datetime.fromtimestamp(stamp_ms / 1_000, UTC).isoformat(" ", "milliseconds")


def _results(plan: PromotionPlan, dry_run: bool, waiting: list[tuple[str, int]]) -> dict[str, Any]:
    return {
        "set": plan.name or None,
        "id": plan.brokerset,
        "lineage": plan.lineage,
        "nodes": list(plan.nodes),
        "promoted": not dry_run,
        "before": plan.is_done,
        "answering": list(plan.others),
        "starting": list(plan.starting),
        "losses": [
            {
                "topic": one.topic or None,
                "partition": None if one.partition < 0 else one.partition,
                "nodes": list(one.nodes),
                "possible": not one.is_whole,
                "from_offset": None if one.partition < 0 else one.offset,
                "after_ms": one.stamp_ms or None,
                "missing_entries": one.missing,
                "silent_seconds": None if one.silent_ms < 0 else one.silent_ms / 1_000,
            }
            for one in plan.losses
        ],
        "absent": [{"topic": topic, "partition": part} for topic, part in plan.absent],
        "leaderless": [
            {"topic": topic or None, "partition": None if part < 0 else part}
            for topic, part in waiting
        ],
    }
