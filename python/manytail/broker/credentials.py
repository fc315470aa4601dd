"""Contains the credential classes, under the same module name as in pika. The broker does not check credentials."""

from manytail.broker.parameters import ExternalCredentials, PlainCredentials

__all__ = ["VALID_TYPES", "ExternalCredentials", "PlainCredentials"]

VALID_TYPES = [PlainCredentials, ExternalCredentials]
