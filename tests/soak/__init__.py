"""Runs of minutes on real engines, for `make soak`: `python -m pytest -m soak tests/soak`."""
