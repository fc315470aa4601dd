"""What the tests share: threads that re-raise, a sequential model of the multi-queue, scripts run in their own process."""
