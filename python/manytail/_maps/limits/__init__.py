"""Limits: Rate, Budget and Concurrency, the accounts behind them, and what a database granted to this process."""
