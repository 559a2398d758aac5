"""What cache and router both need: request records, errors, embedder, clock, configuration. Imports nothing of ours."""
