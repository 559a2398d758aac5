"""How much hardware a load needs: queueing, memory, step times, and plans made of them. Pure functions."""
