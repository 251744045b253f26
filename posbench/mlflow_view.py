"""Views that MLflow's pages open with: filter, columns, grouping and charts as one tag of the experiment.

The form of the tag is the one that the pages' own 'Share' button writes. It is not documented: should it change, the
pages open with their defaults and lose nothing else.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

TAG = "mlflow.sharedViewState."
MEANS = "posbench"
TRIALS = "posbench-trials"
# A page loads this many runs at first, and means of groups are over loaded runs alone.
LOADED_RUNS = 100
LONGEST_TAG = 5000


def url(base: str, experiment: str, view: str = MEANS, *, charts: bool = False) -> str:
    """Where a view opens: as a table, or as charts beside the list of runs.

    Without the workflow type the page opens in its mode for language-model applications.
    """
    mode = "&compareRunsMode=CHART" if charts else ""
    return (
        f"{base.rstrip('/')}/#/experiments/{experiment}/runs"
        f"?workflowType=machine_learning&viewStateShareKey={view}{mode}"
    )


def tags(
    labels: Sequence[str], scores: Sequence[str], validation: Sequence[str], train: Sequence[str]
) -> dict[str, str]:
    """The experiment's tags that hold both views.

    Args:
        labels: the encodings.
        scores, validation, train: names of the metrics that a reader looks at first, in the order of the columns.
    """
    # Names of a task's further splits have a dot; they come after all tasks.
    scores = sorted(scores, key=lambda name: "." in name)
    charts, sections = _charts(scores, validation, train)
    common = {"compareRunCharts": charts, "compareRunSections": sections}
    means = _state("encoding", [_metric(name) for name in scores], [_param("scored")], common)
    trials = _state("trial", [_metric(name) for name in scores], [_param("task"), _tag("posbench.status")], common)
    # By seed, so that the runs that are loaded first are of all encodings.
    trials["orderByKey"] = _param("seed")
    trials["groupBy"] = {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": "encoding"}]}
    # Groups are open unless each is named here; shut ones show their means, one line an encoding.
    trials["groupsExpanded"] = {f"param.encoding.{label}": False for label in labels}
    return {
        TAG + MEANS: _packed("Encodings: means over seeds", means),
        TAG + TRIALS: _packed("Trials: means of loaded runs", trials),
    }


def unpacked(tag: str) -> dict[str, Any]:
    """The state within a tag of `tags`."""
    state = json.loads(tag)["state"]
    return json.loads(zlib.decompress(base64.b64decode(state.removeprefix("deflate;"))))


def _packed(name: str, state: dict[str, Any]) -> str:
    """The tag. A state too long for one loses its charts, which the page then makes itself, and then its columns."""
    charts, columns = ("compareRunCharts", "compareRunSections"), ("columnOrder", "columnWidths", "selectedColumns")
    for lost in ((), charts, columns, ("groupsExpanded",)):
        for field in lost:
            state.pop(field)
        packed = base64.b64encode(zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 9)).decode()
        tag = json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{packed}"})
        if len(tag) <= LONGEST_TAG:
            break
    return tag


def _state(kind: str, scores: list[str], facts: list[str], charts: dict[str, Any]) -> dict[str, Any]:
    return {
        "searchFilter": f"tags.`posbench.kind` = '{kind}'",
        "orderByKey": _param("encoding"),
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [*facts, *scores],
        "columnOrder": [*facts, *scores],
        "columnWidths": {name: max(88, 7 * len(name) - 35) for name in [*facts, *scores]},
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "SHOW_ALL",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,
        "groupBy": None,
        "groupsExpanded": {},
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "autoRefreshEnabled": False,
        "chartsSearchFilter": "",
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        **charts,
    }


def _charts(
    scores: Sequence[str], validation: Sequence[str], train: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Charts in the order in which a study is read: learning curves, final scores, training losses."""
    parts = (
        ("validation: score by update", "LINE", validation),
        ("final score", "BAR", scores),
        ("train: loss by update", "LINE", train),
    )
    charts, sections = [], []
    for place, (title, kind, names) in enumerate(parts):
        # Short names in place of random ones: they compress, and equal studies get equal tags.
        section = f"posbench-{place}"
        sections.append(
            {
                "uuid": section,
                "name": title,
                "display": True,
                "isReordered": True,
                "deleted": False,
                "isGenerated": False,
            }
        )
        for number, name in enumerate(names):
            chart: dict[str, Any] = {
                "uuid": f"{section}-{number}",
                "type": kind,
                "metricSectionId": section,
                "metricKey": name,
                "deleted": False,
                "isGenerated": False,
                "runsCountToCompare": LOADED_RUNS,
            }
            if kind == "LINE":
                chart |= {
                    "xAxisKey": "step",
                    "xAxisScaleType": "linear",
                    "scaleType": "linear",
                    "lineSmoothness": 0,
                    "selectedXAxisMetricKey": "",
                    "yAxisKey": "metric",
                    "yAxisExpressions": [],
                    "range": {},
                    "useGlobalXaxisKey": True,
                    "useGlobalLineSmoothing": True,
                }
            charts.append(chart)
    return charts, sections


def _metric(name: str) -> str:
    return f"metrics.`{name}`"


def _param(name: str) -> str:
    return f"params.`{name}`"


def _tag(name: str) -> str:
    return f"tags.`{name}`"
