"""The commands about objects and namespaces."""
