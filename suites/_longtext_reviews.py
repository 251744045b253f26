"""Reviews in the layout of aclImdb, from a folder or from its archive, which is read and never unpacked."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from posbench.config import DataConfig
from posbench.data import MissingTask, capped, find_below, held_out, part, shared, utf8
from posbench.errors import UserError
from posbench.suite import Rows, TaskData

# Names that begin with a dot are what file managers leave behind.
MEMBER = re.compile(r"(?:(?P<root>.*)/)?(?P<split>train|test)/(?P<label>pos|neg)/[^/.][^/]*\.txt$", re.DOTALL)
LARGEST = 2**24  # bytes of a review: longest one of the published set has some 14 thousand
CHUNK = 2**20
GZIP = b"\x1f\x8b"


def load_reviews(data: DataConfig) -> TaskData:
    """aclImdb, as a folder or as a .tar.gz of it. Training rows are held out for validation, always the same ones.

    Raises:
        MissingTask: there are no reviews.
        UserError: a review is empty, too large or no UTF-8; a split lacks a class; an archive is damaged, or holds the
            reviews twice.
    """
    root = Path(data.path or ".")
    found: dict[str, dict[str, tuple[str, float]]] = {"train": {}, "test": {}}
    for place, match, content in _members(root):
        text = utf8(content, place)
        if not text.strip():
            raise UserError(f"{place}: the file is empty: remove it")
        # A name that an archive holds twice is the file that unpacking would leave: the later one.
        found[match["split"]][place] = text, float(match["label"] == "pos")
    if not all(found.values()):
        raise MissingTask(f"task text: no reviews in aclImdb/train/pos and its like in {root}")
    for split, entries in found.items():
        if missing := {"pos": 1.0, "neg": 0.0}.items() - {("pos" if label else "neg", label)
                                                         for _, label in entries.values()}:
            raise UserError(f"task text: no reviews in aclImdb/{split}/{min(missing)[0]} in {root}, so that there is "
                            "one class: give both")
    # Sorted by name, so that neither the file system nor the archive decides which rows are held out.
    rows = {}
    for name, entries in found.items():
        ordered = [entries[place] for place in sorted(entries)]
        rows[name] = Rows(texts=[(text,) for text, _ in ordered], labels=[label for _, label in ordered])
    stay, out = held_out(rows["train"].labels, data.held_out, 0)
    notes = {"train": "aclImdb/train", "test": "aclImdb/test",
             "validation": f"held out of train ({data.held_out:.0%}, stratified, seed 0), as there is no labelled one"}
    splits = {"train": part(rows["train"], stay), "validation": part(rows["train"], out), "test": rows["test"]}
    return TaskData(splits=shared(capped(splits, notes, data), notes), scored=("test",), notes=notes)


def _members(root: Path) -> Iterator[tuple[str, re.Match[str], bytes]]:
    """Place, parts of the name, and content of every review."""
    folder = root if root.name == "aclImdb" else next(
        (path for path in (root / "aclImdb", *sorted(root.glob("*/aclImdb"))) if path.is_dir()), None)
    if folder is not None and folder.is_dir():
        for path in sorted(folder.glob("t*/*/*.txt")):
            match = MEMBER.fullmatch(path.as_posix())
            if match is None or not path.is_file():
                continue
            try:
                if path.stat().st_size > LARGEST:
                    raise UserError(_too_large(str(path)))
                content = path.read_bytes()
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror}): give an intact file") from None
            yield str(path), match, content
        return
    archive = find_below(root, ("aclImdb_v1.tar", "aclImdb.tar", "aclImdb_sample.tar"))
    if archive is not None:
        yield from _archived(archive)


def _archived(archive: Path) -> Iterator[tuple[str, re.Match[str], bytes]]:
    """The reviews of an archive, read one by one: no name in it is trusted as a path, and nothing else is unpacked.

    Python's tarfile takes a damaged header for the end, and would leave rows out in silence. So what follows the last
    member must be empty, and a gzip file is read to its check sum.
    """
    roots: set[str | None] = set()
    try:
        with archive.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            plain: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw
            with tarfile.open(fileobj=plain, mode="r:") as members:
                for member in members:
                    match = MEMBER.fullmatch(member.name)
                    if match is None or not member.isfile():
                        continue
                    place = f"{archive}/{member.name}"
                    if member.size > LARGEST:
                        raise UserError(_too_large(place))
                    roots.add(match["root"])
                    if len(roots) > 1:
                        raise UserError(f"{archive}: reviews in '{min(map(str, roots))}' and in "
                                        f"'{max(map(str, roots))}': give an archive of one set")
                    file = members.extractfile(member)
                    assert file is not None  # as it is a file
                    yield place, match, file.read()
                plain.seek(members.offset)
                end = plain.read(tarfile.BLOCKSIZE)
                rest = any(part.strip(b"\0") for part in (end, *iter(lambda: plain.read(CHUNK), b"")))
            if rest or len(end) < tarfile.BLOCKSIZE:
                raise UserError(f"{archive}: damaged behind byte {members.offset} of its content: give an intact "
                                "archive")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{archive}: cannot be read ({' '.join(str(error).split())}): give an intact archive") from None


def _too_large(place: str) -> str:
    return f"{place}: more than {LARGEST:,} bytes are no review: remove it"
