"""The version, in a module without heavy imports."""

__version__ = "0.2.0"
