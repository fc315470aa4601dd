"""What a login would need, as in pika.credentials. It is not checked."""

from manytail.broker.parameters import ExternalCredentials, PlainCredentials

__all__ = ["VALID_TYPES", "ExternalCredentials", "PlainCredentials"]

VALID_TYPES = [PlainCredentials, ExternalCredentials]
