"""The `DataLoader`, and the HDMLP-like `Job`.

`loader.py` has the loader, `epoch_cursor.py` the state machine of its epochs, `checkpoint.py` its
saved states, `seed.py` its seed, `samplers.py` the samplers that it shows, and `accelerate.py` what
Hugging Face Accelerate asks of it.
"""
