"""A node of a tier below the core: it pulls topics from a core node, and serves reads of them."""
