"""Tables whose rows change: their memory, and steps that all processes of a job take together."""
