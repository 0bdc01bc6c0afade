"""The engine of a node: a process of its own that serves all ranks of a job there.

Its first rank starts the process, and all ranks agree whether they use it. A rank that cannot
connect makes all of them use engines of their own, with one warning.
"""
