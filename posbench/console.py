"""What the commands show: lines, tables, and how far a study has come."""

from __future__ import annotations

import time
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from posbench.numerals import counted

if TYPE_CHECKING:
    from posbench.store import Record


def say(what: Any, *, error: bool = False, width: int = 0) -> None:
    """Prints a text as it is, or a table, which may need so many columns at least."""
    from rich.console import Console

    console = Console(stderr=error)
    console.width = max(console.width, width)
    if isinstance(what, str):
        console.print(what, markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(what)


class Progress:
    """A bar on a terminal, one line a trial elsewhere; before the first of them what there is to do.

    Args:
        planned: all trials. stored: those that have a result and are not run again. at_once: 0 where a cluster decides.
        phases: trials tune before others report.
    """

    def __init__(self, planned: int, stored: int, *, at_once: int = 1, phases: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.fields[phase]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal or stored == planned,
        )
        self.row = self.bar.add_task("trials", total=planned, completed=stored, last="", phase="trials")
        self.began = self.latest = time.monotonic()
        self.stored, self.phases, self.phase = stored, phases, ""
        if told := _begun(planned, stored, at_once):
            self.console.print(told, highlight=False, soft_wrap=True)

    def __enter__(self) -> Any:
        self.bar.start()
        return self.watch

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def watch(self, done: int, planned: int, record: Record) -> None:
        """Called with each record; done and planned count the phase that it belongs to."""
        phase = "" if not self.phases else "tuning" if record.config.get("tuning") else "reporting"
        if phase != self.phase:
            self.phase, self.began, self.stored = phase, self.latest, done - 1
        self.latest = time.monotonic()
        shown = [row for row in record.rows if row["primary"]]
        several = len({row["length"] for row in shown}) > 1
        scores = ", ".join(f"{row['metric']} {row['value']:.3f}" + (f" at {row['length']}" if several else "")
                           for row in shown)
        last = f"{record.config['task']} {record.label} seed {record.config['seed']}: {scores or record.status}"
        if self.bar.disable:
            why = f", {record.reason}" if record.reason and not scores else ""
            left = (planned - done) * (time.monotonic() - self.began) / max(done - self.stored, 1)
            self.console.print(
                f"[{f'{phase} {done}/{planned}'.strip()}] {last}{why} ({record.seconds:.1f} s; {duration(left)} left)",
                markup=False, highlight=False, soft_wrap=True,
            )
        self.bar.update(self.row, total=planned, completed=done, last=last, phase=phase or "trials")


def _begun(planned: int, stored: int, at_once: int) -> str:
    """What a study says before its first result, which may take a minute."""
    parts, left = [], planned - stored
    if left:
        how = f", {min(at_once, left)} at a time" if at_once > 1 and left > 1 else (
            ", one after the other" if at_once == 1 and left > 1 else "")
        parts.append(f"{counted(left, 'trial')} to run{how}")
    if stored:
        parts.append(f"{stored} of {counted(planned, 'trial')} {'is' if stored == 1 else 'are'} in the store already")
    return "; ".join(parts)


class Steps:
    """What a command of several seconds is at, on a terminal; nothing elsewhere, where only results belong."""

    def __init__(self, doing: str, planned: int) -> None:
        from rich.console import Console

        self.doing, self.planned, self.done = doing, planned, 0
        self.status = Console(stderr=True).status("")

    def __enter__(self) -> Any:
        self.status.start()
        return self.step

    def __exit__(self, *error: object) -> None:
        self.status.stop()

    def step(self, name: str) -> None:
        from rich.markup import escape

        self.done += 1
        self.status.update(escape(f"{self.doing} {name} ({self.done} of {self.planned})"))


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as one reads them."""
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def terminal_width() -> int:
    """Character cells of a line; 160 where there is no terminal."""
    return get_terminal_size((160, 40)).columns


def short(path: Path) -> str:
    """Relative to here where that is shorter to read."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def described(value: Any) -> str:
    """What a plugin is, in a line, and an encoding's options with their defaults in another."""
    from dataclasses import fields, is_dataclass

    paper = getattr(value, "paper", None)
    if paper is None:
        return str(getattr(value, "title", None) or getattr(value, "name", ""))
    lines = [(value.__doc__ or "").strip().split("\n")[0] + (f" arXiv {paper.arxiv}" if paper.arxiv else "")]
    if is_dataclass(value.Config) and (options := fields(value.Config)):
        lines.append("options: " + ", ".join(f"{field.name}={field.default}" for field in options))
    return "\n".join(lines)
