"""Batches on their way to an accelerator.

The last steps of a chain make a pixel four times as large: bytes become floats, and are normalised.
So batches travel as bytes, from pinned memory, on a stream of their own and ahead of use, and
become numbers where they arrive.

- `tail.py` finds the steps that are left for the device.
- `ahead.py` moves batches while the one before is being computed on.
- `onto_torch.py`, `onto_jax.py` know how each library moves one.
- `kernels.py` has the two kernels that torch lacks.
- `gpu_decode.py` hands JPEG files to the GPU's decoder, as many as `balance.py` says.
"""
