"""Schemas of a topic's values: their fields, and whether one version reads what another wrote."""
