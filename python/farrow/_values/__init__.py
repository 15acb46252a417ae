"""Kinds of values: what ``put`` takes, and what ``get`` makes of it."""
