"""The runner `remote`: a run of another service, relayed into ours by polling."""
