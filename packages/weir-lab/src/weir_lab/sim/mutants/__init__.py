"""Mutants: the code with one rule taken away; a simulator that does not notice proves nothing."""

from __future__ import annotations
