"""Contains `Method`, the frame that holds a reply, under the same module name as in pika. Nothing is sent, so there are
no other frames."""

from manytail.broker.spec import Method

__all__ = ["Method"]
