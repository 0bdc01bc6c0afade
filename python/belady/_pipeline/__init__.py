"""From the engine's bytes to the user's batches.

`pipeline.py` is a running job of the engine; `feeds.py` and `workers.py` are the ways in which its
batches are decoded; `decode.py`, `fields.py` and `collate.py` do the work on one batch.
"""
