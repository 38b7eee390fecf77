"""Files written whole or not at all: a temporary file in the same folder, synced, then renamed."""

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from excise.errors import ExciseError

_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def written_whole(path: str | PathLike[str], error: type[ExciseError] = ExciseError) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` only once all of it is on disk; until then `path` stays as it was."""
    target = _target(path, error)
    temporary = target.parent / f".excise-{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as problem:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(problem, OSError):
            raise error(f"cannot write {path}: {_reason(problem, target)}") from problem
        raise
    _sync_folder(target.parent)


def check_writable(path: str | PathLike[str], size: int = 0, error: type[ExciseError] = ExciseError) -> None:
    """Raise what writing `size` bytes to `path` would raise, as far as that can be known before; write nothing."""
    target = _target(path, error)
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            free = shutil.disk_usage(target.parent).free
    except OSError as problem:
        raise error(f"cannot write {path}: {_reason(problem, target)}") from problem
    if size > free:
        raise error(
            f"cannot write {path}: it takes {size / 2**20:,.1f} MiB and {free / 2**20:,.1f} MiB are free; "
            "free some space or choose another disk"
        )


def _target(path: str | PathLike[str], error: type[ExciseError]) -> Path:
    """Where a link leads; refused where something other than a file is in the way."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise error(f"cannot write {path}: it is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise error(f"cannot write {path}: it is not a regular file; choose another name")
    if not target.parent.is_dir():
        raise error(f"cannot write {path}: the folder {target.parent} does not exist; create it first")
    return target


def _reason(problem: OSError, target: Path) -> str:
    what = os.strerror(problem.errno) if problem.errno else str(problem)
    if problem.errno in _NO_ROOM:
        return f"no room is left ({what}); free some space or choose another disk"
    if problem.errno in _NOT_ALLOWED:
        return f"{target.parent} refuses new files ({what}); choose a folder that you may write to"
    return f"{what}; choose another place"


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets folders be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
