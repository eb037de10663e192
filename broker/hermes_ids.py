"""Ids of Hermes' own sessions, by their looks. Pure.

Source: what Hermes 0.19 and 0.22 make. A terminal, an agent, a branch: ``20260806_142233_a1b2c3``, with 6 hexadecimal
digits, its gateway with 8, an import with 12. Its API server: ``api_SECONDS_HEX``, ``api-HEX``, ``run_HEX``,
``room_HEX`` or a UUID, as its editor protocol. Jobs: ``cron_JOB_DATE_TIME``, ``bg_HEX``, ``bg_TIME_HEX``.
"""

from __future__ import annotations

import re

__all__ = ["looks_like_hermes"]

_SHAPES = re.compile(
    r"""(?:
        [0-9]{8}_[0-9]{6}_[0-9a-f]{6,12}
      | api_[0-9]{9,}_[0-9a-f]{8}
      | api-[0-9a-f]{16}
      | run_[0-9a-f]{32}
      | room_[0-9a-f]{32}
      | cron_[A-Za-z0-9][A-Za-z0-9._-]*_[0-9]{8}_[0-9]{6}
      | bg_(?:[0-9]{6}_)?[0-9a-f]{6}
      | [0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}
    )\Z""",
    re.VERBOSE,
)


def looks_like_hermes(session_id: str) -> bool:
    """Whether Hermes could have made that id. Ours (``ses_…``, ``run_…`` of 26 characters) never look so."""
    return _SHAPES.match(session_id) is not None
