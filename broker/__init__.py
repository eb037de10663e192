"""The broker: what a run's stream is, and how it is stored, read and fanned out. No HTTP, no Hermes."""
