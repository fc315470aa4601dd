"""The databases of these tests."""

from support.databases import away, database, own_server, postgresql, restarted, server, sqlite

__all__ = ["away", "database", "own_server", "postgresql", "restarted", "server", "sqlite"]
