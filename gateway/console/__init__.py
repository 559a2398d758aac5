"""The console: what the gateway decides, as it decides it, for people with a browser or a terminal."""
