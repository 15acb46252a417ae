"""The commands about nodes and machines, and their command line."""
