"""File formats, and other records a graph is read from or written to: JSON, dnn-partitioning, STG, networkx, Chrome trace."""
