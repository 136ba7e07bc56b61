"""Kernels of convolutions, each way in its file; `ops.convolution` chooses among them."""
