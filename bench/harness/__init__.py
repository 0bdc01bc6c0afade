"""What bench/engine.py is made of, a module for each kind of section."""
