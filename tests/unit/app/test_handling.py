"""A subscription at work: what it lets begin, and what it tells the broker of each message."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import pytest

import weir
from tests_app import FakeDelivery
