"""GET routes that answer HEAD too: FastAPI, unlike Starlette, routes only the methods that it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter

__all__ = ["get"]

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def get(router: APIRouter, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
    """Register for GET, and for HEAD without a place in the OpenAPI document. Servers leave a HEAD's body out."""

    def register(endpoint: Endpoint) -> Endpoint:
        router.get(path, response_model=None, **options)(endpoint)
        router.head(path, response_model=None, include_in_schema=False)(endpoint)
        return endpoint

    return register
