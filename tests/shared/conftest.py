"""The databases of these tests."""

from support.databases import database, postgresql, server, sqlite

__all__ = ["database", "postgresql", "server", "sqlite"]
