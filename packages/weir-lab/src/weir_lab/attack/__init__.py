"""Attacks on real nodes: what a peer without a right to it gets from an open set, a closed set, and
a stolen data folder.
"""
