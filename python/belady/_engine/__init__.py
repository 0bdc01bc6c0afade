"""The engine as a Python object, its disk caches and its figures."""
