"""What a result was made with, as it is told."""

from __future__ import annotations

import json

from posbench import environment


def test_versions_are_told_in_one_order_before_and_after_the_store() -> None:
    """A store gives names back sorted; a report that is written again must be the same, byte by byte."""
    fresh = environment.facts()["versions"]
    back = json.loads(json.dumps(fresh, sort_keys=True))
    assert list(back) != list(fresh)
    told = environment.spelled_versions(fresh)
    assert told == environment.spelled_versions(back)
    assert told.startswith(f"python {fresh['python']}, posbench {fresh['posbench']}, torch {fresh['torch']}, ")
    assert environment.spelled_versions({**back, "later": "1"}) == f"{told}, later 1"
