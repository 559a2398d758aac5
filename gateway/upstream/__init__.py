"""Our client to the tiers' servers: `base` is the seam, `aiohttp_client` implements it, `replicas` chooses a server."""
