"""Spark's entry point, where PySpark is not installed."""

from __future__ import annotations

import sys

import pytest

from weir.errors import MissingLibrary


def test_a_session_without_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's second line ended in a bare ModuleNotFoundError."""
    monkeypatch.delitem(sys.modules, "weir.spark.session", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'weir-mq\[spark\]'"):
        import weir.spark.session  # noqa: F401
