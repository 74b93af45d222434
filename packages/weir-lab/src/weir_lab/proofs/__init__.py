"""What weir claims in figures: what measures each claim, what was kept of it, and docs/PROOF.md."""
