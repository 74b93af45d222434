"""Copying the entries that outlive their segment, so that its file can be used again."""
