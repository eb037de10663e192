"""The contract of Hermes WebUI's front ends: docs/webui.md."""
