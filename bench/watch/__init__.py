"""Everything that is watched, and everything that watches: a gateway, engines, a store and a real Prometheus."""
