"""The complexity classifier: which tier a request needs."""
