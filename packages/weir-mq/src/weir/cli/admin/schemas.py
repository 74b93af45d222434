"""`weir schema`: show, check. Both read files, and need no broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weir.schema.compatibility import Rule
    from weir.schema.fields import Field, Format

app = typer.Typer(name="schema", help="Show schemas, and check whether versions fit together.")

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
RuleName = Annotated[str, typer.Option("--rule", help="backward, forward or full.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".avsc": "avro",
    ".pb": "protobuf",
    ".desc": "protobuf",
    ".arrow": "arrow",
}


@app.callback(invoke_without_command=True)
def schema(context: typer.Context) -> None:
    """Show schemas, and check whether versions fit together."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def show(
    file: SchemaFile, format: FormatName = "", message: Message = "", as_json: AsJson = False
) -> None:
    """Show the fields of a schema as weir compares them."""
    from weir.cli.output import print_json, print_table

    named = _format(file, format)
    rows = [*_rows(_read(file, named, message), "")]
    if as_json:
        names = ("field", "type", "needed")
        fields = [dict(zip(names, row, strict=True)) for row in rows]
        print_json("weir.schema/1", {"file": str(file)}, {"format": named, "fields": fields})
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
        Path, typer.Option("--after", exists=True, dir_okay=False, help="The version before it.")
    ],
    rule: RuleName = "backward",
    format: FormatName = "",
    message: Message = "",
    as_json: AsJson = False,
) -> None:
    """Check whether a new version of a schema may follow another. Exit code 1 says that it may not.

    backward: who has the new version reads what was written with the one before. forward: who has
    the one before reads what is written with the new version. full: both.
    """
    from weir.cli.output import print_json
    from weir.schema.compatibility import check as find

    named = _format(new, format)
    chosen = _rule(rule)
    fields = [_read(file, named, message) for file in (new, old)]
    problems = find(chosen, named, fields[0], fields[1])
    if as_json:
        found = [one._asdict() for one in problems]
        settings = {"new": str(new), "after": str(old), "rule": chosen, "format": named}
        print_json("weir.schema-check/1", settings, {"fits": not problems, "problems": found})
    elif problems:
        for problem in problems:
            print(problem)
    else:
        print(f"{new} may follow {old} ({chosen})")
    if problems:
        raise typer.Exit(1)


def _format(file: Path, name: str) -> Format:
    from typing import cast, get_args

    from weir.schema.fields import Format

    if not name:
        name = SUFFIXES.get(file.suffix, "")
        if not name:
            raise typer.BadParameter(f"{file}: give --format json, avro, protobuf or arrow")
    if name not in get_args(Format):
        raise typer.BadParameter(f"--format {name}: give json, avro, protobuf or arrow")
    return cast("Format", name)


def _rule(name: str) -> Rule:
    from typing import cast

    if name not in ("backward", "forward", "full"):
        raise typer.BadParameter(f"--rule {name}: give backward, forward or full")
    return cast("Rule", name)


def _read(file: Path, format: Format, message: str) -> Field:
    from weir.schema import parse
    from weir.schema.fields import SCHEMA_BYTES_MAX, BadSchema

    with file.open("rb") as opened:
        data = opened.read(SCHEMA_BYTES_MAX + 1)
    try:
        return parse(format, data, message)
    except BadSchema as error:
        raise BadSchema(f"{file}: {error}") from None


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
