"""Arguments: what the user wrote, checked, and what this machine allows.

`arguments.py` has the checks, `loader_options.py` the arguments of a `DataLoader` before and after
them, `memory.py` the memory that the process may use.
"""
