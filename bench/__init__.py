"""Load generation and the scripts behind every number; the scripted engine."""
