"""The subcommands of `forebay`, one module each."""
