"""Tables that a pipeline makes: Delta Lake, each micro-batch once, with an account of what it read.

The account is part of the transaction that adds a micro-batch's files, as versions of applications
(`weir/stamp`, `weir/messages`, ...). So a table and its account are never of two micro-batches.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from weir.errors import LakeMismatch
from weir.spark.lake import delta_log
from weir.spark.lake import files as parquet
from weir.spark.lake.layout import Cut, KeptFile, NewFile, check_folder

_DAY = pa.field("day", pa.date32())


@dataclass(frozen=True, slots=True)
class Account:
    """What a table was made of, since it was created.

    `batch` is the last micro-batch's number, -1 before the first. All rows of the table's source up
    to `stamp` were read, which are `messages`; `bad` of them went to quarantine, `late` ones came
    behind the watermark, and `repeated` ones have an id that came before. The table has `rows`.
    """

    batch: int = -1
    stamp: int = 0
    messages: int = 0
    bad: int = 0
    repeated: int = 0
    rows: int = 0
    late: int = 0


class Table:
    """The Delta table in a folder, with any columns; kept by days if one of them is `stamp`."""

    def __init__(self, folder: Path, columns: StructType | None = None) -> None:
        """Open the table, or create it with these columns, all of which may be null.

        Raises `LakeMismatch` if it has other columns, or is none and `columns` is None, and what
        Delta Lake has no type for.
        """
        self.folder = check_folder(str(folder))
        if columns is not None and "day" in columns.names and parquet.STAMP in columns.names:
            raise LakeMismatch(f"{folder}: a column 'day' is what its folders are named by")
        if columns is not None:
            _check_names(columns, folder)
        given = None if columns is None else _nullable(to_arrow_schema(columns, timezone="UTC"))
        if not delta_log.is_at(self.folder):
            if given is None:
                raise LakeMismatch(f"{folder} holds no table: run the pipeline first")
            has_days = parquet.STAMP in given.names
            created = given.append(_DAY) if has_days else given
            try:
                delta_log.create(self.folder, created, has_days, "")
            except (ValueError, delta_log.library().exceptions.DeltaError) as error:
                raise LakeMismatch(f"{folder}: Delta Lake has no such columns: {error}") from None
        #: What the table has in Delta, and what rows have in files: days are names of folders.
        self._whole = pa.schema(delta_log.read(self.folder).schema().to_arrow())
        self.has_days = "day" in self._whole.names and parquet.STAMP in self._whole.names
        self.schema = pa.schema([f for f in self._whole if not (self.has_days and f.name == "day")])
        if given is not None:
            self._check(given)

    @property
    def columns(self) -> StructType:
        """The columns as Spark has them."""
        return from_arrow_schema(self.schema)

    @property
    def account(self) -> Account:
        """What the table was made of, as of now."""
        return _account(delta_log.read(self.folder))

    @property
    def cut(self) -> Cut:
        """How far the table is whole, as of now."""
        now = self.account
        return Cut(now.stamp, now.rows)

    def files(self) -> Sequence[KeptFile]:
        """Return the files of the table, as of now."""
        return delta_log.kept_files(delta_log.read(self.folder))

    def has(self, application: str, number: int) -> bool:
        """Whether the micro-batch of a query was added."""
        last = delta_log.read(self.folder).transaction_version(application)
        return last is not None and last >= number

    def number(self, application: str) -> int:
        """Return the last micro-batch of a query that was added, -1 before the first."""
        last = delta_log.read(self.folder).transaction_version(application)
        return -1 if last is None else int(last)

    def write(self, frame: DataFrame, number: int) -> list[NewFile]:
        """Write rows as files, by executors; the table does not know of them yet."""
        prefix = f"{number:08}-{uuid.uuid4().hex[:8]}"
        return parquet.write(frame, self.folder, prefix, self.schema)

    def add(
        self, application: str, number: int, files: Sequence[NewFile], account: Account
    ) -> bool:
        """Add a micro-batch's files, of which there may be none, and set the account, in one
        transaction; return False, and do nothing, if it was added before.

        Raises `LakeMismatch` if a file is gone, or if another query adds at the same time.
        """
        table = delta_log.read(self.folder)
        last = table.transaction_version(application)
        if last is not None and last >= number:
            return False
        for file in files:
            path = self.folder / file.path
            if not path.is_file() or path.stat().st_size != file.size:
                raise LakeMismatch(
                    f"{path} is not there as an executor wrote it: the driver and all executors "
                    "must see the lake under one path, and nobody else may delete files there"
                )
        versions = {f"weir/{name}": value for name, value in asdict(account).items()}
        delta_log.commit(self.folder, table, files, self._whole, {application: number, **versions})
        return True

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows as of now."""
        columns = self.columns
        paths = [f"file://{self.folder / file.path}" for file in self.files()]
        if not paths:
            return spark.createDataFrame([], columns)
        # Spark takes the day of their folders for one more column.
        return spark.read.schema(columns).parquet(*paths).select(*columns.names)

    def compact(self, spark: SparkSession, least: int) -> int:
        """Merge the small files of days that have `least` or more; return how many there were."""
        return delta_log.compact(spark, self.folder, least)

    def vacuum(self, keep_ms: int) -> int:
        """Delete files that no version of the last `keep_ms` needs; return how many."""
        return delta_log.vacuum(self.folder, keep_ms)

    def _check(self, given: pa.Schema) -> None:
        if _plain(given) == _plain(self.schema):
            return
        raise LakeMismatch(
            f"{self.folder} has the columns {_words(self.schema)}, and its step gives "
            f"{_words(given)}: give the step another name, or delete the table and its checkpoint "
            "and let it be made again from the layer below"
        )


def _check_names(columns: StructType, folder: Path) -> None:
    """Raise `LakeMismatch` for names that Spark cannot tell apart: it takes them in any case."""
    seen: set[str] = set()
    for name in columns.names:
        if name.lower() in seen:
            raise LakeMismatch(f"{folder}: two columns are called {name!r}: rename one")
        seen.add(name.lower())


def _account(table: Any) -> Account:
    """Return what the last transaction says, or what holds before the first."""
    found = {
        field.name: table.transaction_version(f"weir/{field.name}") for field in fields(Account)
    }
    return Account(**{name: value for name, value in found.items() if value is not None})


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _nullable_type(field.type)) for field in schema])


def _nullable_type(type: pa.DataType) -> pa.DataType:
    """Return a type whose parts may be null; what is in a file is checked by nobody."""
    if pa.types.is_null(type):
        raise LakeMismatch("a column is null in all rows and has no type: cast it to one")
    if pa.types.is_struct(type):
        return pa.struct([pa.field(f.name, _nullable_type(f.type)) for f in type.fields])
    if pa.types.is_map(type):
        return pa.map_(type.key_type, _nullable_type(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(pa.field("element", _nullable_type(type.value_type)))
    return type


def _plain(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, str(_nullable_type(field.type))) for field in schema]


def _words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
