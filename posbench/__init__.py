"""posbench: what a position encoding is, what it costs, and how it does, compared fairly."""

__version__ = "0.1.0"
