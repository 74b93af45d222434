"""What a start reads of the segments: entries, hard states, and damage."""
