"""From a primitive to a custom call: rules, levels, and calls in two halves."""
