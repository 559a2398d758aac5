"""The weekly review: from samples of a Prometheus to three questions answered, what is wrong, and what to change."""
