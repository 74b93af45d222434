"""The BrokerSets of a system as a tree of tiers: its file, its checks, what changes, who votes."""
