"""The processes of a job: which rank this one is, and how they meet and agree.

`world.py` finds the rank, `discovery.py` the place where ranks meet, `rendezvous.py` and the stores
exchange values there, and `cluster.py` has the `Cluster` that results.
"""
