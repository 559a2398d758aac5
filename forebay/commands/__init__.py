"""One module per command, each with `add` (its parser) and `run` (its work, returning the exit code).

Modules import what is heavy inside `run`, so that `forebay --help` answers at once.
"""
