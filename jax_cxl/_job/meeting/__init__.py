"""How the processes of a job find each other: at the start, and after a loss."""
