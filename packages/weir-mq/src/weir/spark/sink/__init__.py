"""`format("weir")` as a sink: what a query gives is written to topics, exactly once."""
