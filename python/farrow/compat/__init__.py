"""Interfaces of other stores on Farrow: their programs run with a changed import."""
