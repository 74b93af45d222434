"""Whether values written with one schema can be read with another, by the rules of their format.

Pure code over `weir.schema.fields.Field`: the leader of the metadata group decides with it whether
a topic takes a new version. Rules: Avro 1.12 "Schema Resolution", Protobuf "Updating A Message
Type" without what loses values, JSON Schema as inclusion of the sets of valid values, Arrow as
casts that keep every value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from weir.schema.fields import ARRAY, MAP, RECORD, UNION, BadSchema, Field, Format, join

#: Which values must be readable: `backward`, the new version reads values of the version before;
#: `forward`, the version before reads values of the new one; `full`, both.
Rule = Literal["none", "backward", "forward", "full"]

#: Pairs of fields that one comparison looks at. Unions of unions would multiply without it.
PAIRS_MAX = 100_000
#: Problems that are told; more would not help.
PROBLEMS_MAX = 20


class Problem(NamedTuple):
    """Why a reader fails: the field's path, what to change, and the rule that is broken."""

    path: str
    text: str
    rule: Literal["backward", "forward"] = "backward"

    def __str__(self) -> str:
        """Return it as one sentence."""
        return f"{self.path}: {self.text} ({self.rule})"


def check(rule: Rule, format: Format, new: Field, old: Field) -> list[Problem]:
    """Return what breaks `rule` if `new` follows `old`; an empty list if nothing does.

    Raises `BadSchema` if the two are too large to compare.
    """
    found: list[Problem] = []
    if rule in ("backward", "full"):
        found += problems(format, reader=new, writer=old)
    if rule in ("forward", "full"):
        backward = problems(format, reader=old, writer=new)
        found += [one._replace(rule="forward") for one in backward]
    return found


def problems(format: Format, *, reader: Field, writer: Field) -> list[Problem]:
    """Return why values of `writer` cannot all be read with `reader`; empty if they can.

    At most `PROBLEMS_MAX` are told. Raises `BadSchema` if the two are too large to compare.
    """
    found = _Comparison(FORMATS[format]).compare(reader, writer, [])
    return list(dict.fromkeys(found))[:PROBLEMS_MAX]


Scalar = Callable[[Field, Field], str]


class _Rules(msgspec.Struct, frozen=True):
    """What differs between formats."""

    #: The kinds that a reader of a kind also reads.
    reads: Mapping[str, frozenset[str]]
    #: Whether an optional field may be absent from a value, so that a reader that needs it fails.
    omits: bool
    #: Whether fields are matched by number; otherwise by name.
    numbered: bool = False
    #: Whether a reader of a list also reads a single value.
    single_as_list: bool = False
    #: What else two fields of kinds that fit must share: the problem's text, or nothing.
    scalar: Scalar = lambda reader, writer: ""


class _Comparison:
    """One comparison of two trees. Its work is bounded by `PAIRS_MAX`."""

    def __init__(self, rules: _Rules) -> None:
        """Compare by the rules of a format."""
        self._rules = rules
        self._pairs = 0

    def compare(self, reader: Field, writer: Field, path: list[str]) -> list[Problem]:
        """Return the problems at `path` and below."""
        self._pairs += 1
        if self._pairs > PAIRS_MAX:
            raise BadSchema(f"{join(path)}: the two versions have too many unions to compare")
        if writer.kind == UNION:
            return self._union_written(reader, writer, path)
        if reader.kind == UNION:
            return self._union_read(reader, writer, path)
        found = list(self._types(reader, writer, path))
        if found:
            return found
        if reader.kind == RECORD:
            found += self._record(reader, writer, path)
        elif reader.kind in (ARRAY, MAP):
            mark = "[]" if reader.kind == ARRAY else "{}"
            item = writer.fields[0] if writer.kind == reader.kind else writer
            found += self.compare(reader.fields[0], item, [*path, mark])
            if self._rules.omits and item.optional and not reader.fields[0].optional:
                found.append(Problem(join([*path, mark]), "it may be null in written values"))
        return found

    def _types(self, reader: Field, writer: Field, path: list[str]) -> Iterator[Problem]:
        rules = self._rules
        listed = rules.single_as_list and reader.kind == ARRAY and writer.kind != ARRAY
        if listed:
            return
        fits = {reader.kind} | rules.reads.get(reader.kind, frozenset())
        if reader.kind != "any" and writer.kind not in fits:
            yield Problem(join(path), f"{writer.kind} cannot be read as {reader.kind}")
        elif text := rules.scalar(reader, writer):
            yield Problem(join(path), text)

    def _union_written(self, reader: Field, writer: Field, path: list[str]) -> list[Problem]:
        found: list[Problem] = []
        for branch in writer.fields:
            found += self.compare(reader, branch, path)
        return found

    def _union_read(self, reader: Field, writer: Field, path: list[str]) -> list[Problem]:
        closest: list[Problem] | None = None
        for branch in reader.fields:
            found = self.compare(branch, writer, path)
            if not found:
                return []
            if branch.kind == writer.kind:
                closest = found
        if closest is not None:
            return closest
        kinds = ", ".join(branch.kind for branch in reader.fields)
        return [Problem(join(path), f"{writer.kind} is none of {kinds}")]

    def _record(self, reader: Field, writer: Field, path: list[str]) -> Iterator[Problem]:
        rules = self._rules
        written = {_key(field, rules): field for field in writer.fields}
        matched: set[str | int] = set()
        for field in reader.fields:
            below = [*path, field.name]
            keys = [_key(field, rules), *field.aliases]
            key = next((one for one in keys if one in written), None)
            if key is None:
                if not field.optional:
                    yield Problem(join(below), _missing(rules))
                continue
            matched.add(key)
            other = written[key]
            yield from self.compare(field, other, below)
            if rules.omits and other.optional and not field.optional:
                yield Problem(join(below), "it is required, and may be absent in written values")
        yield from _oneofs(reader, writer, path)
        if reader.closed:
            for key, field in written.items():
                if key not in matched:
                    text = "it was written, and the reader admits no other fields"
                    yield Problem(join([*path, field.name]), text)


def _key(field: Field, rules: _Rules) -> str | int:
    return field.number if rules.numbered else field.name


def _missing(rules: _Rules) -> str:
    if rules.omits:
        return "it is required, and was never written: make it optional"
    return "it was never written and has no default: give it one"


def _oneofs(reader: Field, writer: Field, path: list[str]) -> Iterator[Problem]:
    """Find fields of one Protobuf `oneof` that the writer may have set together."""
    apart: dict[str, set[str]] = {}
    written = {field.number: field.detail for field in writer.fields if field.number}
    for field in reader.fields:
        if field.detail and field.number in written:
            group = written[field.number] or f"field {field.number}"
            apart.setdefault(field.detail, set()).add(group)
    for name, groups in sorted(apart.items()):
        if len(groups) > 1:
            text = f"fields of oneof {name} could be set together in written values"
            yield Problem(join([*path, name]), text)


def _avro(reader: Field, writer: Field) -> str:
    if reader.type_name.rpartition(".")[2] != writer.type_name.rpartition(".")[2]:
        return f"{writer.type_name} cannot be read as {reader.type_name}: keep the type's name"
    if reader.detail and writer.detail and reader.detail != writer.detail:
        return f"{writer.detail} cannot be read as {reader.detail}"
    if reader.bounds != writer.bounds:
        return f"{_size(writer)} bytes cannot be read as {_size(reader)}"
    if reader.closed and (lost := set(writer.symbols) - set(reader.symbols)):
        return f"the symbol {min(lost)} is not in the reader's, which has no default"
    return ""


def _size(fixed: Field) -> str:
    return ", ".join(f"{size:g}" for _, size in fixed.bounds)


def _protobuf(reader: Field, writer: Field) -> str:
    if reader.closed and reader.symbols:
        numbers = {symbol.partition("=")[2] for symbol in reader.symbols}
        lost = [symbol for symbol in writer.symbols if symbol.partition("=")[2] not in numbers]
        if lost:
            return f"the symbol {lost[0]} has a number that the reader's closed enum lacks"
    return ""


#: Keywords by which a value must be at least, and at most, so large, long or many.
LEAST = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
MOST = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})


def _json(reader: Field, writer: Field) -> str:
    if reader.symbols:
        if not writer.symbols:
            return "it may hold any value in written values, and the reader lists its values"
        if lost := set(writer.symbols) - set(reader.symbols):
            return f"the value {min(lost)} is not in the reader's list"
    if reader.detail and reader.detail != writer.detail:
        return f"it was not written as {reader.detail}"
    written = dict(writer.bounds)
    for word, bound in reader.bounds:
        other = written.get(word)
        if other is None:
            fits = False
        elif word in LEAST:
            fits = other >= bound
        elif word in MOST:
            fits = other <= bound
        else:
            fits = other == bound
        if not fits:
            return f"{word} {bound:g} is narrower than the writer's"
    return ""


def _arrow(reader: Field, writer: Field) -> str:
    if reader.kind == ARRAY and not reader.detail:
        return ""
    if reader.detail != writer.detail:
        return f"{writer.detail or 'plain'} cannot be read as {reader.detail or 'plain'}"
    return ""


def _sets(**kinds: str) -> dict[str, frozenset[str]]:
    return {kind: frozenset(others.split()) for kind, others in kinds.items()}


#: What a reader reads beside its own kind, by format.
FORMATS: Mapping[Format, _Rules] = {
    "avro": _Rules(
        _sets(
            long="int",
            float="int long",
            double="int long float",
            string="bytes",
            bytes="string",
        ),
        omits=False,
        scalar=_avro,
    ),
    "protobuf": _Rules(
        _sets(
            int32="bool enum",
            int64="int32 uint32 bool enum",
            uint32="bool",
            uint64="uint32 bool",
            sint64="sint32",
            enum="bool int32",
            bytes="string record",
        ),
        omits=True,
        numbered=True,
        single_as_list=True,
        scalar=_protobuf,
    ),
    "json": _Rules(_sets(number="integer"), omits=True, scalar=_json),
    "arrow": _Rules(
        _sets(
            int16="int8 uint8",
            int32="int8 int16 uint8 uint16",
            int64="int8 int16 int32 uint8 uint16 uint32",
            uint16="uint8",
            uint32="uint8 uint16",
            uint64="uint8 uint16 uint32",
            float="halffloat int8 int16 uint8 uint16",
            double="halffloat float int8 int16 int32 uint8 uint16 uint32",
            large_string="string",
            large_binary="binary string large_string",
            binary="string",
        ),
        omits=True,
        scalar=_arrow,
    ),
}
