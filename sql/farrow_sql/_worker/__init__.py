"""A worker: its connections, its processes, and the tasks that it runs."""
