"""The reports that posbench carries; in a checkout they lie in the folder reports/ beside the package."""

from posbench.checkout import plugin_folders

__path__ = plugin_folders("reports", __path__)
