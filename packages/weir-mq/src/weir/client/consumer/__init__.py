"""Consumers of a cluster: pulls, leases, cursor leases and acknowledgements."""
