"""Methods as values, and how a config names them."""

from fedhca2.methods.catalogue import METHODS
from fedhca2.methods.method import Method
from fedhca2.methods.resolve import components_of, resolve, settings_of

__all__ = ["METHODS", "Method", "components_of", "resolve", "settings_of"]
