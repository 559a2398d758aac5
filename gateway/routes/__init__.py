"""The routes that Starlette serves: everything off the relay."""
