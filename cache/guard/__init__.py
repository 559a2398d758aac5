"""The guard: decides between "similar enough" and "the same question"."""
