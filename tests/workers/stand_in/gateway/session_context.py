"""Stands in for Hermes' session context."""


def declare_stateless_channel() -> None:
    pass
