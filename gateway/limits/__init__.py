"""What a key may use: `limiter` decides and settles, a ledger counts; `base` is the seam between them."""
