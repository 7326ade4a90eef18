"""A trainer whose experts are spread over devices, and its exchanges of tokens."""
