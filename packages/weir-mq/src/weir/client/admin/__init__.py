"""Administration of topics, consumer clusters and device hubs."""
