"""Nodes and processes: how one is found, started, reached and drained."""
