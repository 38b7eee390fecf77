"""Files written whole or not at all, whatever stops the writer."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from excise import ExciseError
from excise.atomic import check_writable, readable_size, written_whole


def write(path: Path, content: bytes = b"new") -> None:
    with written_whole(path) as file:
        file.write(content)


def test_a_file_appears_whole_and_keeps_to_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with written_whole(path) as file:
        file.write(b"new")
        assert not path.exists()
    (tmp_path / "plain").touch()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o400])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    with written_whole(path) as file:
        (temporary,) = tmp_path.glob(".excise-*")
        assert temporary.stat().st_mode & 0o777 == mode
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError(), OSError(errno.ENOSPC, "full")])
def test_whatever_happens_the_old_file_stays(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises((type(error), ExciseError)):
        write_half()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "file"
    (tmp_path / "link").symlink_to(target)
    write(tmp_path / "link")
    assert target.read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("act", [write, check_writable])
def test_impossible_places_are_one_sentence(tmp_path: Path, act: Any) -> None:
    (tmp_path / "file").touch()
    for path, sentence in (
        (tmp_path, "it is a folder; name a file in it"),
        (tmp_path / "no" / "file", "does not exist; create it first"),
        (tmp_path / "file" / "file", "does not exist; create it first"),
        (Path("/dev/null"), "it is not a regular file; choose another name"),
    ):
        with pytest.raises(ExciseError, match=f"cannot write {path}: .*{sentence}"):
            act(path)
    with pytest.raises(ExciseError, match=r"^cannot write to a file without a name: give it one$"):
        act("")
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unwritable for root; the next test stands in")
@pytest.mark.parametrize("act", [write, check_writable])
def test_a_folder_without_permission(tmp_path: Path, act: Any) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ExciseError, match=r"refuses new files .Permission denied.; choose a folder"):
        act(tmp_path / "file")


def test_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for act in (write, check_writable):
        with pytest.raises(ExciseError, match=r"refuses new files .Read-only file system.; choose a folder"):
            act(tmp_path / "file")


def test_too_little_room_is_seen_before(tmp_path: Path) -> None:
    check_writable(tmp_path / "file", 1000)
    with pytest.raises(ExciseError, match="MiB are free; free some space or choose another disk"):
        check_writable(tmp_path / "file", 2**60)
    assert not list(tmp_path.iterdir())


def test_small_sizes_are_told_apart_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    with pytest.raises(ExciseError, match=r"it takes 1\.5 KiB and 0 bytes are free; free some space"):
        check_writable(tmp_path / "file", 1536)


@pytest.mark.parametrize(("count", "said"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"),
                                              (2**20, "1.0 MiB"), (5 * 2**30, "5,120.0 MiB")])  # fmt: skip
def test_sizes_as_a_person_says_them(count: int, said: str) -> None:
    assert readable_size(count) == said


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes there")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    script = f"""
import resource
from excise.atomic import written_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with written_whole({str(tmp_path / "file")!r}) as file:
    file.write(bytes(100_000))
"""
    (tmp_path / "file").write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "no room is left (File too large); free some space or choose another disk" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
