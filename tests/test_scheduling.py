"""Tests are handed out such that what takes long begins first, and what waits for others last."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SPARK = "packages/weir-mq/tests/spark/test_source_rows.py"
LAB_SPARK = "packages/weir-lab/tests/spark/test_weather_job.py"
SIM = "packages/weir-lab/tests/sim/test_mutants.py"
JUDGE = "packages/weir-lab/tests/sim/test_drawn_seeds.py"
UNIT = "packages/weir-mq/tests/unit/app/test_app.py"


@pytest.fixture(scope="module")
def order() -> ModuleType:
    """The conftest of the repository, by itself."""
    spec = importlib.util.spec_from_file_location("order_of_tests", ROOT / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_takes_long_begins_first_and_who_waits_is_last(order: ModuleType) -> None:
    turns = [order.turn_of(name) for name in (SPARK, SIM, UNIT)]
    assert turns == sorted(set(turns))
    assert order.turn_of(JUDGE, ("tmp_path", "many_seeds")) > turns[-1]
    assert order.turn_of("tests/test_tidy.py") == turns[-1]


def test_whatever_is_named_holds_tests(order: ModuleType) -> None:
    for name in order.LONGEST:
        place = ROOT / name
        assert place.is_file() or [*place.rglob("test_*.py")], name


def test_tests_with_spark_stay_in_one_process_and_all_others_with_their_file(
    order: ModuleType,
) -> None:
    assert order.scope_of(SPARK) == order.scope_of("packages/weir-mq/tests/spark/test_audit_job.py")
    assert order.scope_of(SPARK) == order.scope_of(LAB_SPARK)
    assert order.scope_of(UNIT) == UNIT


def test_one_process_computes_and_the_others_wait_until_there_is_no_more_of_it(
    order: ModuleType,
) -> None:
    scopes = [SPARK, SIM, UNIT, JUDGE]
    assert order.next_scope(scopes, True) == SIM
    assert order.next_scope(scopes, False) == SPARK
    assert order.next_scope([SIM, JUDGE], False) == SIM
    assert order.next_scope([UNIT, JUDGE], True) == UNIT
    assert order.next_scope([JUDGE], True) == JUDGE
