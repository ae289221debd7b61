"""Triton kernels. Importing the package sets the assembler that they are made with here."""

import torch

from engine.kernels.gpu.assembler import use_assembler

if torch.cuda.is_available():
    use_assembler(torch.cuda.get_device_capability())
