"""The functions of a pipeline's folder: `silver.py` and `gold.py`, plain PySpark."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from weir.errors import BadPipeline
from weir.spark.jobs.queries import reason

#: What a function does not return lacks a place in its topic.
PLACE = ("topic", "partition", "offset", "stamp")


class Functions:
    """The functions of one layer."""

    def __init__(self, folder: Path, layer: str) -> None:
        """Import the layer's file, if it is there. Raises `BadPipeline` for what it raises."""
        self._path = folder / f"{layer}.py"
        self._module: ModuleType | None = None
        if self._path.is_file():
            self._module = _imported(self._path, layer)

    def find(self, name: str, inputs: int) -> Callable[..., DataFrame]:
        """Return the function with this name, which takes so many DataFrames.

        Raises `BadPipeline` if it is not there, or takes others.
        """
        found = getattr(self._module, name, None)
        arguments = ", ".join(["rows"] if inputs == 1 else [f"rows_{n + 1}" for n in range(inputs)])
        if not callable(found):
            raise BadPipeline(
                f"{self._path} has no function {name}: write `def {name}({arguments}):`, which "
                "returns a DataFrame"
            )
        try:
            inspect.signature(found).bind(*[None] * inputs)
        except TypeError as error:
            raise BadPipeline(
                f"{self._path}: {name}({arguments}) is how it is called: {error}"
            ) from None
        return found  # type: ignore[no-any-return]

    def call(self, name: str, frames: Sequence[DataFrame]) -> DataFrame:
        """Return what a function makes of DataFrames. Raises `BadPipeline` if it raises, or returns
        something else.
        """
        function = self.find(name, len(frames))
        try:
            made: Any = function(*frames)
        except PySparkException as error:
            raise BadPipeline(f"{self._path}: {name}: {reason(error)}") from error
        except Exception as error:
            raise BadPipeline(f"{self._path}: {name}: {type(error).__name__}: {error}") from error
        if not isinstance(made, DataFrame):
            raise BadPipeline(
                f"{self._path}: {name} returns {type(made).__name__}, and is to return a DataFrame"
            )
        if made.isStreaming != frames[0].isStreaming:
            raise BadPipeline(f"{self._path}: {name} is to return what it makes of its DataFrames")
        return made

    def keep_place(self, name: str, made: DataFrame) -> None:
        """Raise `BadPipeline` if rows have lost their place in their topic."""
        if lost := [column for column in PLACE if column not in made.columns]:
            raise BadPipeline(
                f"{self._path}: {name} drops the column {lost[0]!r}: return "
                f"{', '.join(PLACE)} too, so that the next layer can read the rows in order"
            )


def _imported(path: Path, layer: str) -> ModuleType:
    name = f"weir_pipeline_{zlib.crc32(str(path).encode()):08x}_{layer}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BadPipeline(f"{path}: {type(error).__name__}: {error}") from error
    # Workers have no such module: what is in it is sent to them whole.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module
