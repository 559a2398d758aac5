"""The chart in `helm/forebay`, and what its files are built from."""
