"""Stands in for Hermes."""

__version__ = "9.9.9"
