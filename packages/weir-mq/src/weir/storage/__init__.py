"""The segmented log: frames of many groups in one row of files, synced together (DESIGN §4 Log)."""
