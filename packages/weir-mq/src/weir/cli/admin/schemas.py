"""`weir schema`: add, list, show, check, rule.

`show` and `check` also read files, and need no broker then.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.client.schemas import TopicSchema, TopicSchemas
    from weir.schema import Schema
    from weir.schema.compatibility import Rule
    from weir.schema.fields import Field

app = typer.Typer(name="schema", help="Give topics schemas, and check whether versions fit.")

Topic = Annotated[str, typer.Argument(help="`topic`, or `namespace/topic`.")]
SchemaFile = Annotated[
    Path,
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="The schema: .json, .avsc, a Protobuf descriptor set (.pb), an Arrow schema (.arrow).",
    ),
]
FormatName = Annotated[
    str, typer.Option("--format", help="json, avro, protobuf or arrow; else by the file's suffix.")
]
Message = Annotated[str, typer.Option(help="The full name of the message, of a Protobuf schema.")]
RuleName = Annotated[str, typer.Option("--rule", help="none, backward, forward or full.")]
Number = Annotated[
    int, typer.Option("--version", min=0, help="A version's number; 0: the newest one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def schema(context: typer.Context) -> None:
    """Give topics schemas, and check whether versions fit together."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def add(
    topic: Topic,
    file: SchemaFile,
    format: FormatName = "",
    message: Message = "",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Add a version to a topic's schema, if the topic's rule lets it follow the one before; and
    create TOPIC.bad, for values that do not fit.
    """
    from weir.cli.admin.topics import create_bad_topic
    from weir.cli.output import hint, print_json
    from weir.errors import Refused
    from weir.model.topic import BAD

    given = _read(file, format, message)

    async def work(client: Client) -> tuple[TopicSchema, str, str]:
        added = await client.schemas.add(topic, given)
        try:
            return added, await create_bad_topic(client, topic), ""
        except Refused as error:  # a user who may add schemas may not always create topics
            return added, "", str(error)

    added, bad, refused = connected(url, work)
    if refused:
        print(f"{topic}{BAD} was not created: {refused}", file=sys.stderr)
    if as_json:
        told = {**_row(added), "bad_topic": bad}
        print_json("weir.schema-added/1", {"url": url, "topic": topic}, told)
    else:
        print(
            f"version {added.number} of the schema of {topic}: {added.schema.format}, from {file}"
        )
        hint(f"Next: weir schema show {topic}, and in a producer: schema={added.number}")


@app.command("list")
def list_versions(topic: Topic, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the versions of a topic's schema, and the rule that new ones keep to."""
    from weir.cli.output import hint, print_json, print_table

    async def work(client: Client) -> TopicSchemas:
        return await client.schemas.versions(topic)

    found = connected(url, work)
    if as_json:
        rows = [_row(one) for one in found.versions]
        told = {"rule": found.rule, "checked": found.checked, "versions": rows}
        print_json("weir.schema-list/1", {"url": url, "topic": topic}, told)
        return
    checked = "checked by producers" if found.checked else "not checked by producers"
    print(f"{topic}: new versions keep to the rule {found.rule}; values are {checked}")
    if found.versions:
        print_table(
            ("VERSION", "FORMAT", "BYTES", "ADDED"),
            [
                (one.number, one.schema.format, len(one.schema.data), _time(one.added_ms))
                for one in found.versions
            ],
        )
    else:
        hint(f"Next: weir schema add {topic} FILE")


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="A topic, or a file with a schema.")],
    number: Number = 0,
    text: Annotated[bool, typer.Option("--text", help="Print the schema as it was added.")] = False,
    format: FormatName = "",
    message: Message = "",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the fields of a schema, of a topic or in a file, as weir compares them."""
    from weir.cli.output import print_json, print_table

    given, settings = _given(what, number, format, message, url)
    if text:
        sys.stdout.buffer.write(given.data)
        sys.stdout.flush()
        return
    rows = [*_rows(_parse(given, what), "")]
    if as_json:
        names = ("field", "type", "needed")
        fields = [dict(zip(names, row, strict=True)) for row in rows]
        print_json("weir.schema/1", settings, {"format": given.format, "fields": fields})
    else:
        print_table(
            ("FIELD", "TYPE", "NEEDED"),
            [
                (field or "(the value)", kind, "yes" if needed else "no")
                for field, kind, needed in rows
            ],
        )


@app.command()
def check(
    new: SchemaFile,
    old: Annotated[
        Path | None,
        typer.Option("--after", exists=True, dir_okay=False, help="The version before it."),
    ] = None,
    topic: Annotated[
        str, typer.Option(help="The topic whose newest version is the one before it.")
    ] = "",
    rule: RuleName = "",
    format: FormatName = "",
    message: Message = "",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Check whether a new version of a schema may follow another. Exit code 1 says that it may not.

    backward: consumers with the new version read values of the version before. forward: consumers
    with the version before read values of the new one. full: both. Without --rule it is the
    topic's, or backward.
    """
    from weir.cli.output import print_json
    from weir.schema.compatibility import check as find

    if (old is None) == (not topic):
        raise typer.BadParameter("give one of --after FILE and --topic TOPIC")
    after = _read(new, format, message)
    if old is not None:
        before, name, ruled = _read(old, after.format, message), str(old), "backward"
    else:
        before, name, ruled = _newest(topic, url)
    if before.format != after.format:
        raise typer.BadParameter(f"{name} is {before.format}, and {new} is {after.format}")
    chosen = _rule(rule or ruled)
    problems = find(chosen, after.format, _parse(after, new), _parse(before, name))
    if as_json:
        found = [one._asdict() for one in problems]
        settings = {"new": str(new), "after": name, "rule": chosen, "format": after.format}
        print_json("weir.schema-check/1", settings, {"fits": not problems, "problems": found})
    elif problems:
        for problem in problems:
            print(problem)
    else:
        print(f"{new} may follow {name} ({chosen})")
    if problems:
        raise typer.Exit(1)


@app.command("rule")
def set_rule(
    topic: Topic,
    rule: Annotated[
        str, typer.Argument(help="none, backward, forward or full; left out: as it is.")
    ] = "",
    checked: Annotated[
        bool | None,
        typer.Option(
            "--checked/--unchecked", help="Whether producers check values before they send them."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Set the rule of a topic's schema, and whether producers check values by it."""
    if not rule and checked is None:
        raise typer.BadParameter("give a rule, or --checked or --unchecked")
    chosen = _rule(rule) if rule else None

    async def work(client: Client) -> TopicSchemas:
        await client.schemas.set_rule(topic, chosen, checked=checked)
        return await client.schemas.versions(topic)

    found = connected(url, work)
    told = "checked by producers" if found.checked else "not checked by producers"
    print(f"{topic}: new versions keep to the rule {found.rule}; values are {told}")


def _given(
    what: str, number: int, format: str, message: str, url: str
) -> tuple[Schema, dict[str, Any]]:
    """Return the schema of a file or else a topic, and what to say of where it is from."""
    if Path(what).is_file():
        return _read(Path(what), format, message), {"file": what}

    async def work(client: Client) -> TopicSchema:
        return await client.schemas.get(what, number)

    found = connected(url, work)
    return found.schema, {"url": url, "topic": what, "version": found.number}


def _newest(topic: str, url: str) -> tuple[Schema, str, str]:
    """Return a topic's newest version, what to call it, and the topic's rule."""

    async def work(client: Client) -> tuple[TopicSchema, TopicSchemas]:
        return await client.schemas.get(topic), await client.schemas.versions(topic)

    newest, all_of_it = connected(url, work)
    return newest.schema, f"version {newest.number} of {topic}", all_of_it.rule


def _rule(name: str) -> Rule:
    from typing import cast

    if name not in ("none", "backward", "forward", "full"):
        raise typer.BadParameter(f"rule {name}: give none, backward, forward or full")
    return cast("Rule", name)


def _read(file: Path, format: str, message: str) -> Schema:
    from typing import get_args

    from weir.schema import SUFFIXES, Schema
    from weir.schema.fields import Format

    choices = "give --format json, avro, protobuf or arrow"
    if not format and file.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{file}: {choices}")
    if format and format not in get_args(Format):
        raise typer.BadParameter(f"format {format}: {choices}")
    return Schema.read(file, message, format)


def _parse(schema: Schema, name: object) -> Field:
    from weir.schema.fields import BadSchema

    try:
        return schema.parse()
    except BadSchema as error:
        raise BadSchema(f"{name}: {error}") from None


def _row(one: TopicSchema) -> dict[str, Any]:
    return {
        "version": one.number,
        "format": one.schema.format,
        "message": one.schema.message,
        "bytes": len(one.schema.data),
        "added_ms": one.added_ms,
    }


def _time(ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _rows(field: Field, path: str) -> Iterator[tuple[str, str, bool]]:
    """Yield path, type and whether a value must have it, the root first."""
    kind = f"{field.kind} {field.type_name}" if field.type_name else field.kind
    if field.detail:
        kind = f"{kind} ({field.detail})"
    yield path, kind, not field.optional
    marks = {"array": "[]", "map": "{}"}
    for number, child in enumerate(field.fields, 1):
        mark = f"({number})" if field.kind == "union" else marks.get(field.kind, f".{child.name}")
        yield from _rows(child, f"{path}{mark}".removeprefix("."))
