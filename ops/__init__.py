"""The ``runcast`` command."""
