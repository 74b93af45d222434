"""Every upper bound in one place, units last. Each is checked before memory is spent."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# Batches and frames (DESIGN §4).
BATCH_BYTES_DEFAULT = 1 * MIB
BATCH_BYTES_MAX = 8 * MIB
BATCH_MESSAGES_MAX = 1 << 20
# A compressed batch stands for at most so many bytes of columns a byte of its own; lz4 can say no
# more. Looking into a batch costs by what it stands for, its sender only by what it sends.
INFLATION_MAX = 256
ENTRY_BYTES_MAX = 1 * MIB
CLIENT_FRAME_BYTES_MAX = BATCH_BYTES_MAX + 64 * KIB
CONTROL_FRAME_BYTES_MAX = 1 * MIB
DEVICE_BODY_BYTES_MAX = 64 * KIB
# Between shards of a node: a reply with its messages, or the registry's whole snapshot.
TRUNK_FRAME_BYTES_MAX = 1 << 30
# Between nodes: an entry is a batch at most. The hello of a link comes before anything is known.
LINK_FRAME_BYTES_MAX = BATCH_BYTES_MAX + 64 * KIB
LINK_HELLO_BYTES_MAX = 4 * KIB
LINK_HELLO_SECONDS = 5.0
LINK_UNSENT_BYTES_MAX = 64 * MIB
LINKS_GREETING_MAX = 1_024
LINK_NODES_MAX = 256
# A shard that takes nothing of what waits for it for so long, or does not even answer, is cut.
LINK_STALLED_MS = 10_000
LINK_SILENT_MS = 2_000

# One message.
KEY_BYTES_MAX = 64 * KIB
TAG_BYTES_MAX = 255
TAGS_PER_BATCH_MAX = 4_096
HEADERS_PER_BATCH_MAX = 1 << 20

# Values over one batch (DESIGN §4): how they are cut, and how many a partition lets grow at once.
VALUE_CHUNK_BYTES = MIB - 4 * KIB
VALUE_BYTES_LOADED_MAX = 64 * MIB
OPEN_VALUES_MAX = 4_096
# A run of chunks takes 16 bytes of references, and of memory: in one value, and in all open ones.
VALUE_RUNS_MAX = (BATCH_BYTES_MAX - MIB) // 16
OPEN_RUNS_MAX = 1 << 20
CHUNKS_PER_FETCH_MAX = 1_024
OPEN_VALUE_MS = 3600 * 1000

# Names and topics.
NAME_CHARACTERS_MAX = 128
TOPICS_MAX = 10_000
PARTITIONS_PER_TOPIC_MAX = 1_024
CLUSTERS_PER_TOPIC_MAX = 1_000

# Retention. Whether something is to go is looked at so often, partition by partition.
RETENTION_MS_DEFAULT = 7 * 24 * 3600 * 1000
RETENTION_MS_MIN = 1_000
RETENTION_EVERY_MS = 30_000

# Producers and dedupe (DESIGN §5 Produce).
PIPELINE_WINDOW = 64
DEDUPE_HORIZON_MS = 7 * 24 * 3600 * 1000
MAX_AHEAD_MS = 1_000
# Sequenced publishes of one device under way: their hashes are kept, so that repeats are told.
DEVICE_WINDOW = 8
# Devices do not expire, so they are bounded by count: 60 to 80 bytes each.
ORIGINS_PER_PARTITION_MAX = 4_000_000

# Scatterings (DESIGN §5): one, those that a shard coordinates at once, and those of a partition
# that are undecided, or not forgotten.
SCATTER_PARTS_MAX = 64
SCATTER_BYTES_MAX = MIB
SCATTERINGS_MAX = 1_024
#: Clusters that a topic's retention may wait for by name.
UNTIL_DONE_MAX = 64
#: Topics that one scattering may publish to, each told to `scatter_with` the others.
TOPICS_TOGETHER_MAX = 16
SCATTERINGS_KEPT_MAX = 4_096

# Fetches, grants, waits.
FETCH_BYTES_MAX = 8 * MIB
WAIT_MS_MAX = 60_000
# Who reads in total order asks for barriers one at a time, and so long after the last at the least.
PROMISE_EVERY_MS = 5
GRANT_MS_DEFAULT = 30_000
GRANT_MS_MAX = 12 * 3600 * 1000
GRANTS_PER_CLUSTER_MAX = 10_000
# So that one that acks nothing does not silence its cluster.
GRANTS_PER_CONSUMER_MAX = 2_500
ACK_RANGES_MAX = 10_000
#: A ping says of so many partitions what is worked on.
PINGED_PARTITIONS_MAX = 1_024
# How many runs of messages one grant may consist of.
GRANT_RUNS_MAX = 4_096
# How far ahead a message may be due, and for how long one may be given back.
DELAY_MS_MAX = 365 * 24 * 3600 * 1000
# How many messages a keyed cluster looks into ahead of what is done, in one partition.
KEYED_WINDOW = 65_536
# How many batches of a partition may hold messages that are not due: 32 bytes each on every
# replica, and about twice that where it is led.
DELAYED_BATCHES_MAX = 1_000_000
REQUESTS_PENDING_MAX = 1_024
# What one connection may send behind a request that waits for news of the registry.
PARKED_BYTES_MAX = 16 * MIB
# How many partitions the devices of one connection may watch.
DEVICE_WATCHES_MAX = 256
# The highest boot count of a hub: the next one is what erased flash reads as.
BOOT_MAX = 0xFFFFFFFE
# How many clusters of a topic may be paused.
CLUSTER_PAUSES_MAX = 1_024
# How many messages a device holds at most, unless it or the operator allows more; the most of that.
DEVICE_IN_HAND_DEFAULT = 1
DEVICE_IN_HAND_MAX = 1_024
# How many that watch for messages are told at a time.
WATCHED_MAX = 64

# A shard's memory (DESIGN §8: one byte budget).
BUDGET_BYTES_DEFAULT = 512 * MIB
CACHE_BYTES_DEFAULT = 128 * MIB
RETRY_AFTER_MS = 200
# Who is refused again and again waits twice as long each time, up to this.
RETRY_AFTER_MS_MAX = 5_000
CONNECTIONS_MAX = 20_000
HELLO_WITHIN_MS = 10_000
# A frame that was begun is finished within this time, or its peer is let go.
FRAME_SECONDS = 60.0
# A device that says nothing for so long is let go.
IDLE_SECONDS_DEFAULT = 1_800.0
# New connections: so many at once, then so many a second; others wait.
ACCEPT_BURST = 10_000
ACCEPTS_PER_SECOND_DEFAULT = 2_000
LISTEN_BACKLOG = 8_192

# The log (DESIGN §4 Log).
LOGS_MAX = 256
SEGMENT_BYTES_DEFAULT = 64 * MIB

# What nodes write, and read: a set writes nothing of a level before each of its nodes supports it.
FORMAT_LEVEL_FIRST = 1
FORMAT_LEVEL = 1
