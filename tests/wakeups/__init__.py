"""Lost wake-ups: every call that waits against every call that ends the wait, many times, while others give up."""
