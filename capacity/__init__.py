"""Capacity: queueing, memory, step times, the simulator and the fleet plan. Pure functions on numpy, scipy, numba."""
