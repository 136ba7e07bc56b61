"""The version: the one place where it stands, for both distributions. Read when they are built, without an import."""

__all__ = ["__version__"]

__version__ = "0.1.0"
