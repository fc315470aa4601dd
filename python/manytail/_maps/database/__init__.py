"""What maps have in common through a SQL database: SQLite or PostgreSQL."""
