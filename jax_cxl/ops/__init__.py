"""The collectives. public.py has their public names."""
