"""The demonstration: two real models trained on the device, beside the same runs on the CPU.

`python -m torchgraft_opencl.demo --help` tells the options.
"""
