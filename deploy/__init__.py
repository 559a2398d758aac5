"""Tiers as vLLM deployments on Ray Serve."""
