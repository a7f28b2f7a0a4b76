"""The words that all trialtap programs share: objects, names, argv, points and the wire."""

__version__ = "0.1.0"
