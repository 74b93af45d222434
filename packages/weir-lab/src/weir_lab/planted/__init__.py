"""Bugs that are planted under tests: a test that passes beside a bug of its rule proves nothing."""

from __future__ import annotations
