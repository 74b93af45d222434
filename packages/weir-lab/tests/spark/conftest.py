"""A Spark session for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from rigs.spark_home import use_quick_spark
from weir.spark.session import session


@pytest.fixture(scope="session", autouse=True)
def quick_spark(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sparks of this folder's tests, and of the programs that they start, take less time."""
    use_quick_spark(tmp_path_factory.mktemp("spark-home"))


@pytest.fixture(scope="session")
def spark(quick_spark: None) -> Iterator[SparkSession]:
    """Spark takes ten seconds to start, so there is one."""
    started = session("weir-lab-tests", cores=2, memory="1g")
    yield started
    started.stop()
