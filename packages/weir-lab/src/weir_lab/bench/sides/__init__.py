"""Brokers that are measured: weir, its peers, and the devices that publish to them."""
