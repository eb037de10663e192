"""The runner ``llm``: a run straight against a model provider's HTTP API, without an agent."""
