"""How far each step of a pipeline is, by its tables and the broker; no Spark is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from weir.client.sync import client as sync
from weir.errors import WeirError
from weir.spark.lake.delta import DeltaLake
from weir.spark.lake.layout import read_cut
from weir.spark.lake.stream import cut_of
from weir.spark.lake.tables import Table
from weir.spark.pipeline import checkpoints
from weir.spark.pipeline.plan import Layer, Plan, full_name


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a step is. `batch` is its last micro-batch, None before the first.

    `rows_in` were read since its table was created, `bad` of them went to quarantine, `late` ones
    came behind the watermark, and `repeated` ones were left out; `rows_out` are in the table. `lag`
    rows of the layer below are not read yet, None where the broker does not answer. `stamp_ms` says
    up to when everything was read, in ms since 1970.
    """

    step: str
    layer: Layer
    batch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    bad: int = 0
    late: int = 0
    repeated: int = 0
    lag: int | None = None
    stamp_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return asdict(self)


def standing(plan: Plan) -> list[Standing]:
    """Return how far each step is, in the order that they run in."""
    found = []
    for layer, name in plan.steps():
        found.append(_bronze(plan, name) if layer == "bronze" else _table(plan, layer, name))
    return found


def _bronze(plan: Plan, name: str) -> Standing:
    rows, stamp, lag = 0, 0, _lag(plan, name)
    for topic in map(full_name, plan.bronze[name].topics):
        folder = plan.lake_of(topic)
        if DeltaLake.is_at(folder):
            rows += DeltaLake(folder, None).snapshot().rows
            cut = read_cut(folder)
            stamp = max(stamp, 0 if cut is None else cut.stamp)
    batch = checkpoints.last(plan.checkpoint_of(name), "commits")
    return Standing(
        name,
        "bronze",
        batch=None if batch < 0 else batch,
        rows_in=rows,
        rows_out=rows,
        lag=lag,
        stamp_ms=stamp >> 16 if stamp else None,
    )


def _lag(plan: Plan, name: str) -> int | None:
    """Return how many messages the lakes of a step lack; None if the broker does not say."""
    lag = 0
    try:
        with sync.connect(plan.url, request_timeout=2.0) as client:
            for topic in map(full_name, plan.bronze[name].topics):
                folder = plan.lake_of(topic)
                is_there = DeltaLake.is_at(folder)
                there = DeltaLake(folder, None).snapshot().positions if is_there else {}
                begins, ends = client.positions(topic)
                for partition, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                    lag += max(0, end - max(begin, there.get(partition, 0)))
    except (WeirError, ValueError, OSError):
        return None
    return lag


def _table(plan: Plan, layer: Layer, name: str) -> Standing:
    folder = plan.table_of(layer, name)
    if layer == "silver":
        below = [plan.lake_of(full_name(plan.silver[name].topic))]
    else:
        below = [plan.table_of("silver", one) for one in plan.gold[name].source]
    there = sum(cut_of(one).rows for one in below if DeltaLake.is_at(one))
    if not DeltaLake.is_at(folder):
        return Standing(name, layer, lag=there)
    now = Table(folder).account
    return Standing(
        name,
        layer,
        batch=None if now.batch < 0 else now.batch,
        rows_in=now.messages,
        rows_out=now.rows,
        bad=now.bad,
        late=now.late,
        repeated=now.repeated,
        lag=max(0, there - now.messages),
        stamp_ms=now.stamp >> 16 if now.stamp else None,
    )
