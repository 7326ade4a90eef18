"""Prints without end."""

import itertools

for number in itertools.count():
    print("line", number, "x" * 1000)
