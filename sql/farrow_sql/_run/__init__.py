"""The run of a query: on the workers of the cluster, or in this process."""
