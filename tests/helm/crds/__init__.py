"""Schemas of custom resources, as data."""
