"""Files of others that tests use."""
