"""Method, the frame around an answer, where pika has it. There are no other frames: nothing is sent."""

from manytail.broker.spec import Method

__all__ = ["Method"]
