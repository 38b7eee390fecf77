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
        with _create(temporary, target) as file:
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
            f"cannot write {path}: it takes {readable_size(size)} and {readable_size(free)} are free; "
            "free some space or choose another disk"
        )


def readable_size(count: int) -> str:
    """Bytes as a person says them: 12 bytes, 3.4 KiB, 5.6 MiB."""
    if count < 2**10:
        return f"{count} bytes"
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count / 2**10:,.1f} KiB"


def _target(path: str | PathLike[str], error: type[ExciseError]) -> Path:
    """Where a link leads; refused where something other than a file is in the way."""
    if not os.fspath(path):
        raise error("cannot write to a file without a name: give it one")
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise error(f"cannot write {path}: it is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise error(f"cannot write {path}: it is not a regular file; choose another name")
    if not target.parent.is_dir():
        raise error(f"cannot write {path}: the folder {target.parent} does not exist; create it first")
    return target


def _create(path: Path, like: Path) -> BinaryIO:
    """A new file with the permissions of the one that it will replace, from the start; else with the usual ones."""
    if not like.exists():
        return open(path, "xb")
    mode = like.stat().st_mode & 0o777
    file = open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))
    path.chmod(mode)  # gives back what the umask took
    return file


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
