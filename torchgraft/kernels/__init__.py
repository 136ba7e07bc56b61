"""Kernel texts. The functions that they call are the library `torchgraft.functions`."""
