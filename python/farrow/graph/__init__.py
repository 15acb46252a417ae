"""Features of the graph of a transaction stream."""
