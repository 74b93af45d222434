"""The BrokerSets of a system as a tree of tiers: its file, its checks, its changes, and its
voters.
"""
