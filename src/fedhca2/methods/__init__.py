"""Methods as values, and how a config names them."""

from fedhca2.methods.catalogue import METHODS
from fedhca2.methods.method import Method
from fedhca2.methods.resolve import resolve, settings_of

__all__ = ["METHODS", "Method", "resolve", "settings_of"]
