"""The commands status, clean and doctor."""
