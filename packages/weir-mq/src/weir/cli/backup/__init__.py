"""`weir backup` and `weir restore`: of a stopped node's folder, or of topics through a client.

A backup is a folder. `manifest.json` is written last and names every file with its length and
xxh3-128, so a backup without one was cut short, and a damaged file is found and named.

kind "folder": files/..., the data folder as it is: same offsets, stamps, clusters, producers.
kind "topics": topics/NAMESPACE/TOPIC/PARTITION.batches: the batches of a partition, one behind the
other, as the broker served them; each says its own length, and has its own checksums. A value that
lies in chunks is a file of its own, topics/NAMESPACE/TOPIC/PARTITION/OFFSET.
"""
