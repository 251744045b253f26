"""The suites that posbench carries; in a checkout they lie in the folder suites/ beside the package."""

from posbench.checkout import plugin_folders

__path__ = plugin_folders("suites", __path__)
