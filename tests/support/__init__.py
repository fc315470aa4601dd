"""What the tests share: threads that re-raise, sequential models of the queues, scripts in processes of their own."""
