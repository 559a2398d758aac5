"""How many replicas of what: sized by step times, proved by simulation, with the reasons and what would be cheaper."""
