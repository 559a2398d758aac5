"""Where the response cache keeps its answers: one module per store."""
