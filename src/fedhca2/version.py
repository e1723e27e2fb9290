"""The version, in a module without heavy imports."""

__version__ = "0.3.0"
