"""Tests of `belady.transforms`, and of loaders that transform."""
