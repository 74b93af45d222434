"""The text that Prometheus reads (exposition format 0.0.4): families of samples, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from weir.broker.api.counts import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Sample = tuple[Labels, float | Histogram]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NO_LABELS: Labels = {}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its samples differ by labels. A histogram's bounds are in the metric's unit."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    samples: Iterable[Sample]

    def lines(self) -> Iterator[str]:
        """Yield the lines, headings first."""
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            if isinstance(value, Histogram):
                yield from _histogram(self.name, labels, value)
            else:
                yield f"{self.name}{_labels(labels)} {_number(value)}"


def one(value: float | Histogram) -> list[Sample]:
    """Return the samples of a family that has a single one, without labels."""
    return [(_NO_LABELS, value)]


def _histogram(name: str, labels: Labels, value: Histogram) -> Iterator[str]:
    counts = [*accumulate(value.counts)]  # a copy: another thread may be counting
    for bound, count in zip([*map(_number, value.bounds), "+Inf"], counts, strict=True):
        yield f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
    yield f"{name}_sum{_labels(labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(labels)} {counts[-1]}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    # In full: nine digits of a time in seconds are off by minutes.
    return str(int(value)) if value == int(value) else repr(value)
