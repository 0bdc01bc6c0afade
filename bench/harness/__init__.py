"""What bench/engine.py and bench/check_slowfs.py are made of."""
