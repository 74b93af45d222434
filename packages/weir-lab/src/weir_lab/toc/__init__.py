"""The transport of weir-toc in a simulated datagram network, under faults, and its checkers."""
