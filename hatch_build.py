"""A wheel carries the three plugin folders inside the package; an editable install reads them from the checkout."""

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PluginFolders(BuildHookInterface):
    def initialize(self, version: str, build_data: dict) -> None:
        # Only in a standard wheel: in an editable install a forced file would be a copy that goes stale.
        if version == "standard":
            for folder in ("encodings", "suites", "reports"):
                build_data["force_include"][folder] = f"posbench/{folder}"
