"""Tests of the native module itself."""
