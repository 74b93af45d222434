"""Every upper bound in one place, units last. Each is checked before memory is spent."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# Batches and frames (DESIGN §4).
BATCH_BYTES_DEFAULT = 1 * MIB
BATCH_BYTES_MAX = 8 * MIB
BATCH_MESSAGES_MAX = 1 << 20
# How many bytes of columns each byte of a compressed batch may inflate to; lz4 reaches no more.
# Checking a batch costs by its inflated size, sending it only by its compressed size.
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
HOST_CHARACTERS_MAX = 255
LINK_HELLO_SECONDS = 5.0
LINK_UNSENT_BYTES_MAX = 64 * MIB
LINKS_GREETING_MAX = 1_024
LINK_NODES_MAX = 256
# The link to a shard that takes no frames, or does not answer, for this long is closed.
LINK_STALLED_MS = 10_000
LINK_SILENT_MS = 2_000

# One message.
KEY_BYTES_MAX = 64 * KIB
TAG_BYTES_MAX = 255
TAGS_PER_BATCH_MAX = 4_096
#: So many tags may a fetch ask for; a reader that wants more takes all messages, and selects.
TAGS_PER_FETCH_MAX = 64
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

# Retention. Each partition is checked this often.
RETENTION_MS_DEFAULT = 7 * 24 * 3600 * 1000
RETENTION_MS_MIN = 1_000
RETENTION_EVERY_MS = 30_000

# Producers and dedupe (DESIGN §5 Produce).
PIPELINE_WINDOW = 64
DEDUPE_HORIZON_MS = 7 * 24 * 3600 * 1000
MAX_AHEAD_MS = 1_000
# Sequenced publishes of one device in flight: their hashes are kept, to recognise repeats.
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

# Sinks (docs/adr/0075). A publication, which is one scattering, names so many parts and takes so
# many bytes; a partition holds so many runs of staged batches that are not published, and so many
# of the queries that write to a topic are known.
PUBLICATION_PARTS_MAX = 768
PUBLICATION_BYTES_MAX = 7 * MIB
STAGED_RUNS_MAX = 65_536
STAGED_MS = 3600 * 1000
SINKS_PER_TOPIC_MAX = 10_000

# Cuts (DESIGN §5 Spark): topics and partitions of one, and partitions of all that a shard resolves.
CUT_TOPICS_MAX = 256
CUT_PARTITIONS_MAX = 4_096
CUTS_AT_ONCE_MAX = 1_024
CUTS_PARTITIONS_MAX = 65_536

# Fetches, grants, waits.
FETCH_BYTES_MAX = 8 * MIB
WAIT_MS_MAX = 60_000
# A reader in total order asks for barriers one at a time, this long after the last at least.
PROMISE_EVERY_MS = 5
GRANT_MS_DEFAULT = 30_000
GRANT_MS_MAX = 12 * 3600 * 1000
GRANTS_PER_CLUSTER_MAX = 10_000
# Lower than the limit of a cluster, so that a consumer that acks nothing does not block it.
GRANTS_PER_CONSUMER_MAX = 2_500
ACK_RANGES_MAX = 10_000
#: The secret of a consumer that may go to another relay; and for so long after the session of a
#: relay has ended, what it held is kept for that consumer.
CONSUMER_TOKEN_BYTES = 16
GRANTS_KEPT_MS = 10_000
#: A ping reports what is worked on for at most this many partitions.
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
# What one connection may send after a request that waits for the registry, or for a quota.
PARKED_BYTES_MAX = 16 * MIB
# How many partitions the devices of one connection may watch.
DEVICE_WATCHES_MAX = 256
# The highest boot count of a hub: the next one is what erased flash reads as.
BOOT_MAX = 0xFFFFFFFE
# Verified devices of one tag have a batch of their own from so many bytes on that come at once; a
# client ends a batch of so many bytes where the tag changes.
TAG_RUN_BYTES = 64 * KIB
# How often a device may be replaced: generations take three bytes where they are stored.
GENERATION_MAX = 0xFFFFFF
# Fleets of devices, versions of a fleet's key, and devices that were replaced or revoked.
FLEETS_MAX = 1_024
FLEET_KEYS_MAX = 8
DEVICE_ROWS_MAX = 1_000_000
# Hubs of a partition that were forgotten, and left behind what they may not come with again: about
# 150 bytes each on every replica.
TOMBSTONES_MAX = 250_000
# How many clusters of a topic may be paused.
CLUSTER_PAUSES_MAX = 1_024
# How many messages a device holds at most, unless it or the operator allows more; the most of that.
DEVICE_IN_HAND_DEFAULT = 1
DEVICE_IN_HAND_MAX = 1_024
# How many devices that watch for messages are notified at a time.
WATCHED_MAX = 64

# A shard's memory (DESIGN §8: one byte budget).
BUDGET_BYTES_DEFAULT = 512 * MIB
CACHE_BYTES_DEFAULT = 128 * MIB
RETRY_AFTER_MS = 200
# A client that is refused repeatedly doubles its wait each time, up to this.
RETRY_AFTER_MS_MAX = 5_000
CONNECTIONS_MAX = 20_000
HELLO_WITHIN_MS = 10_000
# What a peer may bring before its hello, and how long its TLS handshake may take once it is served.
STRANGER_BYTES_MAX = 16 * KIB
STRANGER_SECONDS = 10.0
# The broker closes connections whose frame is not complete within this time.
FRAME_SECONDS = 60.0
# The broker closes connections of devices that are silent for this long.
IDLE_SECONDS_DEFAULT = 1_800.0
# New connections: a burst, then a rate per second; others wait.
ACCEPT_BURST = 10_000
ACCEPTS_PER_SECOND_DEFAULT = 2_000
LISTEN_BACKLOG = 8_192

# The log (DESIGN §4 Log).
LOGS_MAX = 256
SEGMENT_BYTES_DEFAULT = 64 * MIB
#: Of the first segment of a new log: a node that nobody uses takes no more.
FIRST_SEGMENT_BYTES = 2 * BATCH_BYTES_MAX

# What nodes write, and read: a set writes nothing of a level before each of its nodes supports it.
FORMAT_LEVEL_FIRST = 1
FORMAT_LEVEL = 3
# From this level on there are schemas, and batches name them.
FORMAT_LEVEL_SCHEMAS = 2
# From this level on batches can be staged, and published by reference.
FORMAT_LEVEL_STAGING = 3
# From this level on there are users, roles, modes of access and quotas.
FORMAT_LEVEL_ACCESS = 3
#: From this level on, clusters may take some tags alone.
FORMAT_LEVEL_FILTERS = 3
#: From this level on, producer ids may have a window.
FORMAT_LEVEL_WINDOWS = 3

# BrokerSets and their tiers (docs/how-to/tiers.md): of a system, and of one set.
SETS_MAX = 1_024
SET_ID_MAX = 65_535
SET_NODES_MAX = 256
SET_TOPICS_MAX = 1_024
SET_UPPERS_MAX = 16
TIER_LEVEL_MAX = 64
TOPOLOGY_BYTES_MAX = 512 * KIB
TOPOLOGY_FILE_BYTES_MAX = 2 * MIB
# What the sets above keep for a set that was not heard of for so long, unless it says otherwise.
HOLD_SECONDS_DEFAULT = 24 * 3600
# From this level on a set has a topology, and ids other than 0.
FORMAT_LEVEL_TOPOLOGY = 3

# Schemas of topics. Each node holds all of them in memory.
SCHEMA_VERSIONS_MAX = 1_000
SCHEMAS_BYTES_MAX = 32 * MIB

# Users, roles and their rules. Each shard holds all of them in memory.
USERS_MAX = 20_000
USER_ROLES_MAX = 64
ROLES_MAX = 4_096
ROLE_RULES_MAX = 1_000
ACCESS_BYTES_MAX = 16 * MIB
# Without news of the metadata for so long a shard of a closed set lets nobody in and begins nothing
# new, and then ends the sessions that it let in.
STALE_SECONDS_DEFAULT = 30
CUTOFF_SECONDS_DEFAULT = 600
# How many namespaces and principals have quotas, and how much a quota may allow.
QUOTAS_MAX = 4_096
QUOTA_LIMIT_MAX = 1 << 50
# Issuers of tokens, and the keys of one.
TOKEN_ISSUERS_MAX = 16
TOKEN_KEYS_MAX = 64
# Tokens that renewed others, and have not ended.
TOKEN_RENEWALS_MAX = 16_384
# Of one user: else one could keep all others from it.
TOKEN_RENEWALS_OF_ONE_MAX = 64
# How long a token lives that users may have issued for themselves.
OWN_TOKEN_SECONDS_MAX = 24 * 3600
# What a shard counts by principal and resource of what it refused, or would have.
REFUSALS_KEPT_MAX = 1_024
# The audit topic: changes that it does not have yet, logins and denials that a shard keeps for it,
# and requests of administrators that wait for it.
AUDIT_CHANGES_MAX = 4_096
AUDIT_EVENTS_MAX = 4_096
AUDIT_WAITING_MAX = 256
AUDIT_RETENTION_MS = 90 * 24 * 3600 * 1000

# Relays. Rows and bytes of batches in one entry or answer, and what a puller may ask for.
RELAY_ROWS_MAX = 65_536
RELAY_BYTES_MAX = BATCH_BYTES_MAX + ENTRY_BYTES_MAX
RELAY_CREDIT_BYTES_MAX = 8 * MIB
RELAY_MARKS_MAX = 64
# Tags of one filter, and filters that a partition of a relay knows at once.
FILTER_TAGS_MAX = 4_096
FILTERS_KEPT_MAX = 4_096
# Entries of partition 0 about the roster: one for each partition that joins or ends, at most.
ROSTER_ENTRIES_MAX = 2 * 65_536
ROSTER_ENTRIES_TOLD_MAX = 1_024
ROSTER_ENTRY_BYTES_MAX = 4 * KIB
# Children that a partition keeps data for, how long after their last word, and how much.
HOLDS_MAX = 1_024
HOLD_MS_DEFAULT = 24 * 3600 * 1000
HOLD_BYTES_DEFAULT = 64 * 1024 * MIB
HOLDS_STORED_EVERY_MS = 10 * 60 * 1000
# Topics that a relay node keeps, and bytes that wait for its disk before it pulls no more.
RELAY_TOPICS_MAX = 1_024
RELAY_UNSYNCED_BYTES_MAX = 64 * MIB
# Pulls of relays below that wait in a relay node.
RELAY_PULLS_WAITING_MAX = 65_536
# Readers that wait for marks in a relay node, and stamps of one topic that it waits for above.
RELAY_READERS_WAITING_MAX = 65_536
RELAY_MARKS_AWAITED_MAX = 16
# Promotions that cut a partition's log, and ranges that a relay has lost.
FORKS_MAX = 1_024
GAPS_MAX = 65_536
# The secret by which a node joins its set, and what the set keeps of it.
JOIN_SECRET_BYTES = 16
JOIN_KEY_BYTES = 32
