"""The modes of clusters: what is granted next, and to whom."""
