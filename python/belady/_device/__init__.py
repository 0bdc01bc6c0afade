"""Moves batches to an accelerator.

The last steps of a chain make a pixel four times as large: bytes become floats, and are normalised.
So batches travel as bytes, from pinned memory, on a separate stream and ahead of use, and become
numbers on the device.

- `placement.py` reads the arguments: `device=`, `memory_format=`, `decode="gpu"`.
- `tail.py` finds the steps of a chain that run on the device.
- `device_feed.py` moves batches while the program computes on the one before.
- `torch_mover.py` and `jax_mover.py` move one batch with the library's functions.
- `kernels.py` has the two kernels that torch lacks.
- `gpu_decode.py` sends JPEG files to the GPU's decoder, as many as `balance.py` decides.
"""
