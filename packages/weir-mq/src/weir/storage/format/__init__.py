"""How records, segments, checkpoints and index files lie as bytes."""
