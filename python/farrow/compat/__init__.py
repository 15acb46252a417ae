"""The calls of other stores, on Farrow, so that their programs run with an import changed."""
