"""Results that were paid for: their keys and bytes, and the look-ups and records of a map."""
