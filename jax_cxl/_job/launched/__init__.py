"""What a process knows of the launcher or the cluster that started it."""
