"""Two QEMU guests, each with a kernel of its own, that share one dax device."""
