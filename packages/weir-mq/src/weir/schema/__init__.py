"""Schemas of a topic's values: their fields, and whether one version reads what another wrote."""

from __future__ import annotations

from weir.schema.parsers import Schema

__all__ = ["Schema"]
