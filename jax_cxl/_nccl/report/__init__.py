"""The command `report`: measures NCCL and this package's library on the cards of a machine."""
