"""Which samples come when.

`selection.py` turns a loader's arguments into an `Order` (`order.py`): one computed from the
epoch's number, one of torch's generators (`torch_default.py`, `torch_generator.py`) or a sampler
that the user wrote (`user_sampler.py`). `sharding.py` divides the samples of a sampler among ranks.
"""
