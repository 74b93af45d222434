"""A Spark session for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from weir.spark.session import session
from weir_lab.spark_cluster.standalone import LEAN


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark takes ten seconds to start, so there is one."""
    quick = {"spark.driver.extraJavaOptions": LEAN}
    started = session("weir-lab-tests", cores=2, memory="1g", **quick)
    yield started
    started.stop()
