"""Rules of relays that can be taken away, each with a seed whose world then breaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weir_lab.relays.scenario import play
from weir_lab.sim.mutants.planting import Patch

_CORE = "weir_lab.relays.core"
_ROWS = "weir.relay.rows"
_HOLDS = "weir.relay.holds"
_LOWER = "weir.relay.lower"
_MARKS = "weir.relay.marks"
_PARTITION = "weir.relay.partition"
_STATE = "weir.relay.state"
_UPPER = "weir.relay.upper"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule that is gone: pieces of source (module, what stands there, what does instead), a
    seed that shows it, and how what is found then begins.
    """

    name: str
    seed: int
    breaks: tuple[str, ...]
    pieces: tuple[tuple[str, str, str], ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Take the rule away, and bring it back."""
        patch = Patch()
        try:
            for module, old, new in self.pieces:
                patch.source(module, old, new)
            yield
        finally:
            patch.undo()

    def is_caught(self, seed: int) -> bool:
        """Whether a world of this seed breaks as it should when the rule is gone."""
        with self.planted():
            return any(one.startswith(self.breaks) for one in play(seed).violations)

    def hunt(self, seeds: Iterable[int]) -> int:
        """Return the first seed that shows it; -1 if none does."""
        return next((seed for seed in seeds if self.is_caught(seed)), -1)


MUTANTS = (
    Mutant(
        "what is not durable counts as durable",
        90,
        ("Gap",),
        (
            (
                _PARTITION,
                "return min(self._durable, self.upper.holds.lowest(now_ms, self.state.end))",
                "return min(self.state.end, self.upper.holds.lowest(now_ms, self.state.end))",
            ),
        ),
    ),
    Mutant(
        "what is not committed is pulled",
        0,
        ("SameView",),
        (
            (
                _CORE,
                "return len(self.log.truth)",
                "return max([len(self.log.truth), *(item.next for item in self.log.items)])",
            ),
        ),
    ),
    Mutant(
        "a mark comes before its messages",
        0,
        ("Mark",),
        (
            (_UPPER, "mark.through <= reached and is_all else ()", "is_all else ()"),
            (
                "weir.relay.messages",
                "if any(mark.through > answer.next for mark in answer.marks):",
                "if False:",
            ),
            (_PARTITION, "if mark.through <= state.end and (held is", "if (held is"),
        ),
    ),
    Mutant(
        "a mark is of those partitions that were heard of",
        2,
        ("Mark",),
        (
            (
                _MARKS,
                "for partition in range(first.partitions)]",
                "for partition in self._marks]",
            ),
        ),
    ),
    Mutant(
        "a filter is checked by the newest one",
        84,
        ("SameView",),
        (
            (
                _STATE,
                "if max(one.first, offset) < min(behind, limit) and not covers(one.tags, tags):",
                "if one is self.filters[-1] and not covers(one.tags, tags):",
            ),
        ),
    ),
    Mutant(
        "holds of children are not reported",
        20,
        ("Gap",),
        (
            (
                _PARTITION,
                "return min(self._durable, self.upper.holds.lowest(now_ms, self.state.end))",
                "return self._durable",
            ),
        ),
    ),
    Mutant(
        "the hold of the newer owner alone counts",
        35,
        ("Gap",),
        (
            (
                _HOLDS,
                "self._rows[child] = Hold(offset, now_ms, tags)",
                "self._rows = {one: hold for one, hold in self._rows.items() if one[0] != child[0]}"
                " | "
                "{child: Hold(offset, now_ms, tags)}",
            ),
        ),
    ),
    Mutant(
        "what is skipped is told as void",
        0,
        ("SameView",),
        (
            (
                _ROWS,
                "self.skip(row.count, row.stamp if row.kind == _BATCH else 0)",
                "self.void(row.count)",
            ),
        ),
    ),
    Mutant(
        "a chunk is reclaimed under its value",
        2,
        ("Chunk", "Held"),
        (
            (
                _STATE,
                "if chunk := self.chunks.lowest_index(self.start):",
                "if chunk := 0:",
            ),
        ),
    ),
    Mutant(
        "roster entries come behind the messages that need them",
        2,
        ("Roster",),
        ((_UPPER, "if entry.offset <= portion.next:", "if entry.offset < portion.first:"),),
    ),
    Mutant(
        "roster entries are filtered out",
        2,
        ("Roster", "Mark"),
        (
            (
                _UPPER,
                "if entry.offset <= portion.next:",
                "if entry.offset <= portion.next and pull.tags is None:",
            ),
        ),
    ),
    Mutant(
        "the lineage is ignored",
        0,
        ("SameView",),
        (
            (_UPPER, "if pull.lineage < source.lineage:", "if not pull.lineage:"),
            (_LOWER, "answer.lineage != state.lineage or not follows:", "not follows:"),
            (
                _PARTITION,
                "answer.lineage, answer.first, answer.next,",
                "state.lineage, answer.first, answer.next,",
            ),
        ),
    ),
    Mutant(
        "holds of a lineage that ended count on",
        1009,
        ("Gap",),
        ((_HOLDS, "child: hold._replace(offset=min(hold.offset, offset))", "child: hold"),),
    ),
    Mutant(
        "an upper node of an older lineage is believed",
        254,
        ("SameView",),
        (
            (
                _UPPER,
                "if not source.is_open or pull.lineage > source.lineage:",
                "if not source.is_open:",
            ),
            (_LOWER, "answer.lineage != state.lineage or not follows:", "not follows:"),
            (
                _PARTITION,
                "answer.lineage, answer.first, answer.next,",
                "state.lineage, answer.first, answer.next,",
            ),
        ),
    ),
    Mutant(
        "a log that begins holds nothing until it is pulled",
        2,
        ("Gap",),
        (
            (
                _UPPER,
                "if source.is_open and pull.lineage == source.lineage:",
                "if source.is_open and pull.lineage == source.lineage and pull.offset != UNKNOWN:",
            ),
        ),
    ),
    Mutant(
        "a relay whose disk was lost keeps nothing for children",
        20,
        ("Gap",),
        (
            (
                _PARTITION,
                "self.upper.holds.begin(start, now_ms)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "an answer for an older filter is stored under the newer",
        21,
        ("SameView",),
        (
            (
                _LOWER,
                "if now is None or now.tags != asked.tags or asked.until > state.filter_ends():",
                "if now is None:",
            ),
        ),
    ),
    Mutant(
        "a stamp ends with each of its batches",
        1,
        ("Stamps",),
        (
            (
                _ROWS,
                "self.skip(row.count, row.stamp if row.kind == _BATCH else 0)",
                "self.skip(row.count, row.stamp)",
            ),
        ),
    ),
    Mutant(
        "the hash of a chunk is not checked",
        40,
        ("Chunk",),
        (
            (
                _LOWER,
                "self._batches.check_chunk(piece, group)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "a value comes without its chunks",
        0,
        ("Chunk",),
        (
            (
                "weir.relay.portion",
                "runs = () if kept is None else batches.chunks(kept)",
                "runs = ()",
            ),
            (
                _LOWER,
                "if not all(state.chunks.has_run(first, count) for first, count in runs):",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "a relay without news lets its children wait",
        4,
        ("Live",),
        (
            (
                _UPPER,
                "if source.age_ms(now_ms) > self._stale_ms:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "news are as new as the answer that brings them",
        14,
        ("Live",),
        (
            (
                _PARTITION,
                "max(self._source.heard_ms, now_ms - answer.age_ms)",
                "max(self._source.heard_ms, now_ms)",
            ),
        ),
    ),
)
