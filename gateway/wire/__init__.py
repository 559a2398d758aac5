"""What a request comes over: ASGI, or a connection of our own server."""
