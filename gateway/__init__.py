"""HTTP in, HTTP out: one endpoint in front of the tiers."""
