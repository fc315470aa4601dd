"""Method, the frame that contains an answer, in the module where pika has it. Nothing is sent, so there are no other
frames."""

from manytail.broker.spec import Method

__all__ = ["Method"]
