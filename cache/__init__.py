"""The response cache: answers that may be served again."""
