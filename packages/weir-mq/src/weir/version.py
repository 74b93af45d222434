"""The release of weir. Rooms import it from here: `weir` itself stands above them."""

__version__ = "0.1.0"
