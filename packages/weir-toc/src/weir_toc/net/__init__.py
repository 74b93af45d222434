"""A whole network on one machine: a tree of network namespaces that are joined by veth links."""
