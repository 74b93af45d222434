"""`weir audit`: logins, denials and changes, from the audit topic."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connection import DEFAULT_URL, Timeout, Url, connected_for_ever
from weir.cli.process import ending_quietly
from weir.cli.retention import place

if TYPE_CHECKING:
    from weir.client.client import Client

_TOPIC = "_weir/audit"


def audit(
    user: Annotated[
        str | None,
        typer.Option(
            metavar="[NAMESPACE/]NAME",
            help="Only events by or about this user; or a principal, such as anonymous.",
        ),
    ] = None,
    verb: Annotated[str | None, typer.Option(help="Only this verb, such as login.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            metavar="OUTCOME",
            help="Only committed, allowed, refused, would-be-refused or dropped.",
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(metavar="earliest|-1h|TIME", help="Where to begin, as --from of weir tail."),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    timeout: Timeout = "5s",
    url: Url = DEFAULT_URL,
) -> None:
    """Show events with their users: logins, denials, changes, first uses of topics."""
    begin = place(since, "--since")
    _check_outcome(outcome)

    async def work(client: Client) -> None:
        start = {0: begin} if isinstance(begin, int) else begin
        async with client.reader(_TOPIC, start=start, follow=follow) as reader:
            async for delivered in reader.batches():
                for message in delivered.messages():
                    event = json.loads(message.value)
                    if not _fits(event, user, verb, outcome):
                        continue
                    sys.stdout.write(json.dumps(event) + "\n" if as_json else _line(event) + "\n")
                sys.stdout.flush()

    with ending_quietly():
        connected_for_ever(url, timeout, work)


def _check_outcome(outcome: str | None) -> None:
    """Raise `typer.BadParameter` for what nothing ends as: it would be taken for "none was"."""
    from typing import get_args

    from weir.broker.records.audit import Outcome

    known = get_args(Outcome)
    if outcome is not None and outcome not in known:
        told = ", ".join(known[:-1])
        raise typer.BadParameter(f"{outcome!r}: give {told} or {known[-1]}", param_hint="--outcome")


def _fits(
    event: dict[str, Any], user: str | None, verb: str | None, outcome: str | None
) -> bool:  # fmt: skip
    if verb not in (None, event["verb"]) or outcome not in (None, event["outcome"]):
        return False
    if user is None:
        return True
    full = user if "/" in user else f"default/{user}"
    who = event["who"].partition("#")[0]
    return who in (user, f"user:{full}") or (event["kind"], event["resource"]) == ("user", full)


def _line(event: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(event["at"] / 1_000))
    resource = f"{event['kind']} {event['resource']}".rstrip()
    many = f" ({event['count']:,} times)" if event["count"] > 1 else ""
    more = "".join(f" {event[name]}" for name in ("detail", "missing") if event.get(name))
    whence = f" from {event['whence']}" if event["whence"] else ""
    who = event["who"] or "-"
    return f"{at}Z {event['outcome']}: {who}{whence} {event['verb']} {resource}{many}{more}"
