"""The copy of a study in MLflow, for browsing.

This is the only file that imports mlflow, which takes seconds, and only when it is needed. Whatever goes wrong within
it is counted and told once at the end: the store has the results, and the next call of the study fills the copy in.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from posbench import mlflow_runs, mlflow_view
from posbench.errors import UserError, one_line
from posbench.mlflow_runs import Run
from posbench.numerals import counted
from posbench.settings import NAME
from posbench.store import Record
from posbench.tracker import JsonLines, Tracker

__all__ = ["JsonLines", "MLflow", "Tracker"]

DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
# MLflow's limits of one call are 100 params and 1000 values of all sorts.
PARAMS_A_CALL = 100
POINTS_A_CALL = 900
# A lock or a dead server costs seconds each time: after this many failures in a row the rest is left to the next study.
PATIENCE = 3
LOCKED_SECONDS = 2
# Within what the libraries below MLflow say of a server that is gone, silent, or of a name that nobody has.
SILENT = re.compile(r"\[Errno -?[0-9]+\] ([A-Za-z ]+)|timed out|Remote end closed connection|Connection aborted")
# MLflow's own defaults keep a caller for minutes when its server is gone.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "3",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    # Nothing here is ever a pickle, and what is one is nothing for these pages to open.
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}


class MLflow(Tracker):
    """A browsing copy in MLflow: one experiment a study, one flat run a trial, a run of means an encoding, one summary.

    Args:
        uri_or_home: a folder, which gets 'mlflow.db' and 'mlartifacts'; or the http(s) address of a server.
        mend: what is said to do where the copy is incomplete.

    Runs are recognised by the trial's fingerprint, so that a study which is run again adds what is missing; a run
    that a killed study left half written is replaced.
    """

    def __init__(self, uri_or_home: Path | str, *, mend: str = "posbench sync fills it in") -> None:
        text, self.mend = str(uri_or_home), mend
        self.home: Path | None = None
        if text.startswith(("http://", "https://")):
            if "@" in urlsplit(text).netloc:
                raise UserError(
                    "the address of an MLflow server must hold no password: leave it out and set "
                    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                )
            self.uri = text.rstrip("/")
        elif "://" in text:
            raise UserError(f"MLflow at '{text}': give a folder, or the http(s) address of a server")
        else:
            self.home = Path(text).expanduser().resolve()
            self.uri = f"sqlite:///{self.home / DATABASE}"
        self._forget()

    def _forget(self) -> None:
        self.experiment: str | None = None
        # By key: the runs that MLflow has of it, each with whether it is whole and what content it had.
        self.known: dict[str, list[tuple[str, bool, str]]] = {}
        self.records: dict[str, Record] = {}
        self.columns: tuple[dict[str, None], ...] = ({}, {}, {}, {})
        self.shown: dict[str, str] = {}
        self.grows = False
        self.lost: set[str] = set()
        self.told: set[str] = set()
        self.failures, self.reason = 0, ""

    def prepare(self) -> None:
        """Creates the database. Several processes that do so at once would break it, and it takes seconds."""
        self._try("the database", self._create_database)

    def begin(self, study: str, description: str) -> None:
        if not NAME.fullmatch(study) or ".." in study:
            raise UserError(
                f"study name '{study[:80]}': use letters, digits, '.', '_' and '-', at most 64, a letter or digit first"
            )
        failures, reason = self.failures, self.reason
        self._forget()
        self.failures, self.reason = failures, reason
        self._try("the experiment", lambda: self._open(study, description))

    def trial(self, record: Record, files: Mapping[str, Path]) -> None:
        self._put(record.fingerprint, lambda: mlflow_runs.of_trial(record, files))
        if record.config.get("tuning"):
            return  # a search's trial is in no mean and in no view of those that report
        self.records[record.fingerprint] = record
        before = sum(map(len, self.columns))
        for known, names in zip(self.columns, ([record.label], *mlflow_runs.columns(record)), strict=True):
            known.update(dict.fromkeys(names))
        # A first call shows what there is so far; later ones keep the views until they have all trials again.
        if self.grows and sum(map(len, self.columns)) > before:
            self._try("the view", self._show)

    def summary(self, name: str, values: Mapping[str, float], files: Mapping[str, Path]) -> None:
        self._put(f"summary:{name}", lambda: mlflow_runs.of_summary(name, values, files))

    def end(self) -> str:
        labels: dict[str, list[Record]] = {}
        for record in self.records.values():
            labels.setdefault(record.label, []).append(record)
        for place, (label, records) in enumerate(sorted(labels.items())):
            colour = mlflow_runs.COLOURS[place % len(mlflow_runs.COLOURS)]
            self._put(f"encoding:{label}", partial(mlflow_runs.of_encoding, label, records, colour))
        if self.experiment is not None and self.records:
            self._try("the view", self._show)
        line = ""
        if self.lost:
            line = (
                f"MLflow copy incomplete: {len(self.lost)} of {counted(len(self.told), 'run')}, "
                f"{self.mend}: {self.reason}"
            )
        self._forget()
        return line

    def view_url(self, experiment: str, base: str = "http://127.0.0.1:5000", *, charts: bool = False) -> str:
        """Where the means by encoding of an experiment (its id) open in the browser."""
        return mlflow_view.url(base if self.home else self.uri, experiment, charts=charts)

    def studies(self) -> list[tuple[str, str]]:
        """Id and name of the experiments that posbench wrote, newest first."""
        found = self._client().search_experiments(order_by=["last_update_time DESC"])
        return [(each.experiment_id, each.name) for each in found if mlflow_view.TAG + mlflow_view.MEANS in each.tags]

    def _try(self, what: str, action: Callable[[], Any]) -> bool:
        """Does something with MLflow, or counts that it could not be done. Returns whether it was done."""
        if self.failures >= PATIENCE:
            return False
        try:
            action()
        except Exception as error:
            # Anything at all may go wrong within MLflow, and none of it is worth a study.
            self.failures += 1
            self.reason = self._told(what, error)
            return False
        return True

    def _told(self, what: str, error: Exception) -> str:
        """What went wrong, of a server without the layers of libraries that each say so again."""
        told = str(error).strip() or type(error).__name__
        if self.home is None and (silent := SILENT.search(told)):
            return f"the server at {self.uri} (MLFLOW_TRACKING_URI) does not answer: {silent[1] or silent[0]}"
        return f"{what}: {one_line(told.splitlines()[0], 300)}"

    def _probe(self) -> None:
        """Fails fast where MLflow would wait: 20 s a call for a locked database, 100 s for one it cannot open."""
        if self.home is None or not (self.home / DATABASE).exists():
            return
        database = sqlite3.connect(self.home / DATABASE, timeout=LOCKED_SECONDS, isolation_level=None)
        try:
            database.execute("begin immediate")
            database.execute("rollback")
        finally:
            database.close()

    def _client(self) -> Any:
        if self.home and set(str(self.home)) & set("%?#"):
            raise OSError(f"MLflow cannot keep its files in '{self.home}', whose name has one of % ? #")
        self._probe()
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def _create_database(self) -> None:
        if self.home is None or (self.home / DATABASE).exists():
            return
        self.home.mkdir(parents=True, exist_ok=True)
        # Built aside and linked when whole: a killed or doubled preparation leaves nothing half made under the name.
        with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=self.home) as folder:
            MLflow(folder)._client().search_experiments(max_results=1)
            try:
                os.link(Path(folder) / DATABASE, self.home / DATABASE)
            except FileExistsError:
                pass
            except OSError:
                # A file system without links: a rename is as whole, but two at once are not told apart.
                os.replace(Path(folder) / DATABASE, self.home / DATABASE)

    def _open(self, study: str, description: str) -> None:
        self._create_database()
        client = self._client()
        found = client.get_experiment_by_name(study)
        if found is None:
            place = str(self.home / ARTIFACTS / study) if self.home else None
            try:
                self.experiment = client.create_experiment(study, artifact_location=place)
            except Exception:
                # Another study of this name was faster.
                found = client.get_experiment_by_name(study)
                if found is None:
                    raise
        if found is not None:
            self.experiment = found.experiment_id
            if found.lifecycle_stage == "deleted":
                client.restore_experiment(self.experiment)
            self.shown = dict(found.tags)
        self.grows = mlflow_view.TAG + mlflow_view.MEANS not in self.shown
        # Never over what somebody wrote there in the browser.
        if "mlflow.note.content" not in self.shown:
            client.set_experiment_tag(self.experiment, "mlflow.note.content", description)
        token = None
        while True:
            page = client.search_runs([self.experiment], max_results=1000, page_token=token)
            for run in page:
                tags = run.data.tags
                if known := tags.get("posbench.key"):
                    whole = run.info.status in ("FINISHED", "FAILED")
                    self.known.setdefault(known, []).append((run.info.run_id, whole, tags.get("posbench.content", "")))
            if not (token := page.token):
                return

    def _put(self, key: str, make: Callable[[], Run]) -> None:
        """Mirrors a run unless it is there with the same content."""
        self.told.add(key)
        if self.experiment is None or not self._try(f"run {key[:40]}", lambda: self._write(key, make())):
            self.lost.add(key)
        else:
            self.lost.discard(key)

    def _write(self, key: str, run: Run) -> None:
        older, content = self.known.get(key, []), run.tags["posbench.content"]
        same = [known for known in older if known[1:] == (True, content)]
        if len(same) == len(older) == 1:
            return
        client = self._client()
        kept = same[0] if same else (self._log(client, run), True, content)
        # What a run replaces goes when the new one is whole.
        for identity in {known[0] for known in older} - {kept[0]}:
            client.delete_run(identity)
        self.known[key] = [kept]

    def _log(self, client: Any, run: Run) -> str:
        from mlflow.entities import Metric, Param

        began, ended = (int(moment * 1000) for moment in (run.began, run.ended))
        tags = {"posbench.key": run.key, "posbench.kind": run.kind, "mlflow.source.name": "posbench", **run.tags}
        if run.kind == "trial":
            tags["posbench.fingerprint"] = run.key
        identity = client.create_run(self.experiment, start_time=began, tags=tags, run_name=run.name).info.run_id
        # Numbers of other types than these would be stored as bytes by sqlite and break the experiment's page.
        points = [Metric(point.name, float(point.value), ended, int(point.step)) for point in run.points]
        params = [Param(name, value) for name, value in run.params.items()]
        while points or params:
            client.log_batch(identity, metrics=points[:POINTS_A_CALL], params=params[:PARAMS_A_CALL])
            del points[:POINTS_A_CALL], params[:PARAMS_A_CALL]
        if run.texts or run.files:
            with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
                run.write_artifacts(Path(folder))
                client.log_artifacts(identity, folder)
        client.set_terminated(identity, "FINISHED" if run.finished else "FAILED", ended)
        self.failures = 0
        return identity

    def _show(self) -> None:
        """Keeps the experiment's views in step with the metrics that there are."""
        for name, value in mlflow_view.tags(*map(list, self.columns)).items():
            if self.shown.get(name) != value:
                self._client().set_experiment_tag(self.experiment, name, value)
                self.shown[name] = value
