"""The encodings that posbench carries; in a checkout they lie in the folder encodings/ beside the package."""

from posbench.checkout import plugin_folders

__path__ = plugin_folders("encodings", __path__)
