"""Where the pool of a job lies, and how its processes share it."""
