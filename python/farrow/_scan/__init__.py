"""Rows of tables as engines scan them."""
