"""`weir inspect`: look into the logs of a stopped node, or of a copy; nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from weir.cli.survey import GroupSurvey, LogSurvey
    from weir.storage.format.frame import Frame
    from weir.storage.format.record import HardState


def inspect(
    folder: Annotated[Path, typer.Argument(help="A node's data folder, or one log folder of it.")],
    group: Annotated[
        int | None, typer.Option(min=0, help="List the last entries of this group.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many entries to list.")] = 20,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte, and report on each file.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show segments, groups, terms, offsets and damage of a stopped node's logs.

    Reads only; exit code 1 if a log is damaged.
    """
    if verify:
        from weir.cli.verify import report

        if not report(folder, as_json):
            raise typer.Exit(1)
        return
    from weir.cli.output import hint, print_json
    from weir.cli.survey import NotALog, survey_all

    surveys = survey_all(folder, group, limit)
    groups = {one.group: one.name for found in surveys for one in found.groups}
    if group is not None and group not in groups:
        known = ", ".join(f"{number} ({name})" for number, name in sorted(groups.items()))
        raise NotALog(f"no log in {folder} has a group {group}; there are {known or 'none'}")
    if as_json:
        settings = {"folder": str(folder), "group": group, "limit": limit}
        print_json("weir.inspect/1", settings, {"logs": [_as_json(one) for one in surveys]})
    else:
        for one in surveys:
            _print(one, group)
        if group is None:
            hint(f"Next: weir inspect {folder} --group N lists a group's last entries")
    if any(one.damage for one in surveys):
        raise typer.Exit(1)


def _as_json(found: LogSurvey) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "log": found.log,
        "system": found.system,
        "mark": found.mark,
        "tail": found.tail,
        "torn": found.torn,
        "damage": found.damage,
        "segments": [
            {
                "name": one.segment.name,
                "class": one.segment.class_,
                "generation": one.segment.generation,
                "base": one.segment.base,
                "bytes": one.segment.size,
                "used_bytes": one.used_bytes,
                "closed": one.closed,
                "frames": {kind.name.lower(): count for kind, count in one.frames.items()},
            }
            for one in found.segments
        ],
        "spares": found.spares,
        "unreadable": found.unreadable,
        "groups": [_group(one) for one in found.groups],
        "entries": [_entry(frame) for frame in found.entries],
        "checkpoint": None
        if found.checkpoint is None
        else [{"group": group, "index": index} for group, index in found.checkpoint.items()],
    }


def _group(found: GroupSurvey) -> dict[str, Any]:
    index, state = found.index, found.hard_state
    first = index.get(index.first) if index else None
    last = index.get(index.last) if index else None
    return {
        "group": found.group,
        "name": found.name,
        "first_index": first.index if first else None,
        "last_index": last.index if last else None,
        "first_term": first.term if first else None,
        "last_term": last.term if last else None,
        "next_offset": index.next_offset if index else 0,
        "hard_state": state._asdict() if state else None,
    }


def _entry(frame: Frame) -> dict[str, Any]:
    return {
        "index": frame.index,
        "term": frame.term,
        "kind": frame.kind.name.lower(),
        "position": frame.position,
        "bytes": frame.length,
        "first_offset": frame.first_offset if frame.first_offset >= 0 else None,
        "next_offset": frame.next_offset if frame.next_offset >= 0 else None,
    }


def _print(found: LogSurvey, group: int | None) -> None:
    from weir.cli.output import print_table
    from weir.storage.format.frame import Kind
    from weir.storage.format.segment import CLASS_SPACE, COPY_GENERATION

    print(f"{found.folder}: log {found.log} of system {found.system:x}")
    print(f"durable to {found.mark:,} for certain, frames to {found.tail:,}")
    if not found.damage:
        print(f"torn tail: {found.torn}" if found.torn else "the tail is clean")
    print()
    print_table(
        ("SEGMENT", "CLASS", "GENERATION", "BASE", "USED", "OF", "CLOSED", "FRAMES", "MARKS"),
        [
            (
                one.segment.name,
                one.segment.class_ or "new frames",
                one.segment.generation % COPY_GENERATION,
                one.segment.base % CLASS_SPACE,
                one.used_bytes,
                one.segment.size,
                "yes" if one.closed else "no",
                one.frames.total(),
                one.frames[Kind.MARK],
            )
            for one in found.segments
        ],
    )
    for name in found.spares:
        print(f"{name}  spare")
    for name in found.unreadable:
        print(f"{name}  its header is unreadable")
    print()
    rows = [(one, _group(one)) for one in found.groups]
    print_table(
        ("GROUP", "NAME", "ENTRIES", "TERMS", "NEXT OFFSET", "VOTE", "CHECKPOINT"),
        [
            (
                str(row["group"]),
                row["name"],
                _span(row["first_index"], row["last_index"]),
                _span(row["first_term"], row["last_term"]),
                row["next_offset"],
                _vote(one.hard_state) if one.hard_state else "-",
                (found.checkpoint or {}).get(one.group),
            )
            for one, row in rows
        ],
    )
    if group is not None:
        print()
        _print_entries(found)
    if found.damage:
        print(f"\nDAMAGED: {found.damage}")


def _print_entries(found: LogSurvey) -> None:
    from weir.cli.output import print_table

    print_table(
        ("INDEX", "TERM", "KIND", "OFFSETS", "BYTES", "POSITION"),
        [
            (
                frame.index,
                frame.term,
                frame.kind.name.lower(),
                _span(frame.first_offset, frame.next_offset - 1) if frame.next_offset > 0 else "-",
                frame.length,
                frame.position,
            )
            for frame in found.entries
        ],
    )


def _span(first: int | None, last: int | None) -> str:
    if first is None or last is None:
        return "-"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _vote(state: HardState) -> str:
    from weir.model.ids import incarnation_of, node_of

    again = f" (incarnation {incarnation_of(state.vote)})" if incarnation_of(state.vote) else ""
    voted = f"node {node_of(state.vote)}{again}" if state.vote else "nobody"
    return f"{voted} in term {state.term}"
