"""Datasets: listings of files, tables, subsets and joins."""
