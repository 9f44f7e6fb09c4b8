"""Unpacking environments: everything in a conda archive, and nothing outside of the given directory."""

import gzip
import os
import random
import signal
import subprocess
import sys
import tarfile

import pytest

from engine.environments.archive import unpack
from engine.environments.budget import cpu_seconds, unfolded_bytes
from engine.environments.layout import EnvironmentFailed
from tests.engine.environments.sources import link, pack_members


@pytest.fixture
def unpacked(tmp_path):
    """Unpack members; return the directory."""

    def run(*members, **most):
        path = pack_members(tmp_path / "env.tar.gz", *members)
        target = tmp_path / "cache" / "env"
        target.mkdir(parents=True)
        unpack(path, target, **most)
        return target

    return run


def test_files_keep_their_content_their_mode_and_their_time(tmp_path):
    source = tmp_path / "bin" / "tool"
    source.parent.mkdir()
    source.write_text("#!/bin/sh\n")
    source.chmod(0o755)
    os.utime(source, (1_600_000_000, 1_600_000_000))
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as tar:
        tar.add(source, arcname="bin/tool")
    target = tmp_path / "env"
    target.mkdir()
    unpack(tmp_path / "env.tar.gz", target)
    status = (target / "bin" / "tool").stat()
    assert (status.st_mode & 0o777, status.st_mtime) == (0o755, 1_600_000_000)


def test_links_within_it_are_made(unpacked):
    target = unpacked(
        link("lib/libz.so", "libz.so.1"),
        link("lib/libz.so.2", "./lib/libz.so.1", hard=True),
        ("lib/libz.so.1", b"z"),
        link("lib64", "lib"),
        link("bin/up", "../lib/libz.so.1"),
    )
    for name in ("lib/libz.so", "lib/libz.so.2", "lib64/libz.so", "bin/up"):
        assert (target / name).read_bytes() == b"z"


def test_the_python_of_a_packed_virtual_environment_and_links_to_it_may_be_the_machines(unpacked):
    target = unpacked(link("bin/python", "python3"), link("bin/python3", "/usr/bin/python3"))
    links = [os.readlink(target / "bin" / name) for name in ("python", "python3")]
    assert links == ["python3", "/usr/bin/python3"]


def test_a_set_user_id_bit_is_not_taken_over(unpacked):
    info = tarfile.TarInfo("bin/sudo")
    info.mode = 0o6777
    assert (unpacked(info) / "bin" / "sudo").stat().st_mode & 0o7777 == 0o755


FIFO = tarfile.TarInfo("pipe")
FIFO.type = tarfile.FIFOTYPE
DEVICE = tarfile.TarInfo("null")
DEVICE.type = tarfile.CHRTYPE


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([("../outside", b"x")], "'../outside' leads out of it"),
        ([("bin/../../outside", b"x")], "'bin/../../outside' leads out of it"),
        ([("/outside", b"x")], "'/outside' leads out of it"),
        ([link("out", "../..")], "'out' leads out of it, to '../..'"),
        ([link("out", "/etc/passwd")], "'out' leads out of it, to '/etc/passwd'"),
        ([link("bin/other", "/usr/bin/python3")], "leads out of it"),
        ([link("out", "../secret", hard=True)], "'out' leads out of it"),
        ([link("out", "absent", hard=True)], "'out' is a link to 'absent': No such file"),
        ([link("bin", "lib"), ("bin/python", b"x")], "'bin' is a link and something else as well"),
        ([("bin/python", b"x"), link("bin", "lib")], "'bin' is a link and something else as well"),
        ([link("a/b/c", "../.."), link("out", "a/b/c/../..")], "'out' leads out of it, to '"),
        ([link("a/b/c", "../.."), link("out", "a/b/c/../.."), link("out/in/it", "x")], "'out' is a link and"),
        ([link("bin/python3", "/etc"), link("out", "bin/python3/passwd")], "'out' leads out of it, to '/etc"),
        ([link("twice", "a"), link("twice", "a")], "'twice' is a link and something else as well"),
        ([FIFO], "'pipe' is neither a file nor a directory nor a link"),
        ([DEVICE], "'null' is neither"),
    ],
)
def test_what_would_leave_the_directory_is_refused(unpacked, tmp_path, members, complaint):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "secret").write_text("s")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(EnvironmentFailed) as failed:
        unpacked(*members)
    assert f"'{tmp_path}/env.tar.gz' is not unpacked: " in str(failed.value)
    assert complaint in str(failed.value)
    inside = tmp_path / "cache" / "env"
    written = {path for path in tmp_path.rglob("*") if not path.is_relative_to(inside)}
    assert written - {*before} == {tmp_path / "env.tar.gz"}


def test_a_file_is_not_written_through_a_link_that_the_archive_brings(unpacked, tmp_path):
    (tmp_path / "victim").write_text("mine")
    with pytest.raises(EnvironmentFailed):
        unpacked(link("bin/python3", str(tmp_path / "victim")), ("bin/python3", b"overwritten"))
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize(
    ("size", "most", "complaint"),
    [
        (4000, {"most_bytes": 10_000}, "it takes more room than there is"),
        (0, {"most_members": 10}, "more than 10 members"),
    ],
)
def test_an_archive_that_would_fill_the_disk_is_refused_before_it_does(unpacked, size, most, complaint):
    with pytest.raises(EnvironmentFailed, match=complaint):
        unpacked(*((f"f{number}", bytes(size)) for number in range(11)), **most)


@pytest.mark.parametrize(
    ("content", "at", "complaint"),
    [
        (random.Random(1).randbytes(100_000), 50_000, "can't be unpacked: CRC check failed"),
        (b"many " * 100_000, 300, "can't be unpacked"),  # its compressed data makes no sense
    ],
)
def test_an_archive_that_was_damaged_on_its_way_is_told_of(tmp_path, content, at, complaint):
    path = pack_members(tmp_path / "env.tar.gz", ("lib/weights", content))
    damaged = bytearray(path.read_bytes())
    damaged[at : at + 10] = bytes(255 - byte for byte in damaged[at : at + 10])
    path.write_bytes(damaged)
    (tmp_path / "env").mkdir()
    with pytest.raises(EnvironmentFailed, match=complaint):
        unpack(path, tmp_path / "env")


@pytest.mark.parametrize("time", ["nan", "inf"])
def test_a_file_from_no_time_is_told_of(unpacked, time):
    info = tarfile.TarInfo("file")
    info.pax_headers = {"mtime": time}
    with pytest.raises(EnvironmentFailed, match="can't be unpacked"):
        unpacked(info)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00cut short"])
def test_what_is_no_archive_is_told_of(tmp_path, content):
    (tmp_path / "env.tar.gz").write_bytes(content)
    with pytest.raises(EnvironmentFailed, match="can't be unpacked") as failed:
        unpack(tmp_path / "env.tar.gz", tmp_path)
    assert failed.value.hint == "pack it as conda-pack does, as a .tar.gz"


@pytest.mark.parametrize(
    ("kind", "size"), [(tarfile.XHDTYPE, 300 << 20), (tarfile.GNUTYPE_LONGNAME, 17 << 10)]
)
def test_a_header_that_is_longer_than_any_path_is_refused_and_not_read(tmp_path, kind, size):
    """`tarfile` searches a long one for minutes, in one call that nothing can interrupt."""
    header = tarfile.TarInfo("header")
    header.type, header.size = kind, size
    with gzip.open(tmp_path / "env.tar.gz", "wb", compresslevel=1) as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size >> 10):
            file.write(b"1" * 1024)
    (tmp_path / "env").mkdir()
    with pytest.raises(EnvironmentFailed, match=f"it has a header of {size} bytes, and 16384 are the most"):
        unpack(tmp_path / "env.tar.gz", tmp_path / "env")


@pytest.mark.parametrize("where", ["in a file", "behind the last member"])
def test_an_archive_does_not_unfold_to_much_more_than_it_looks_like(tmp_path, where):
    info = tarfile.TarInfo("zeros")
    info.size = 3 << 20 if where == "in a file" else 0
    path = tmp_path / "env.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf()) + gzip.compress(bytes(3 << 20)))
    (tmp_path / "env").mkdir()
    with pytest.raises(EnvironmentFailed, match="it unfolds to more than 2097152 bytes"):
        unpack(path, tmp_path / "env", unfolded=lambda packed: 2 << 20)


def test_a_gigabyte_is_free_and_beyond_it_the_ratio_counts():
    assert [unfolded_bytes(packed) for packed in (1000, 20 << 20)] == [1 << 30, 2000 << 20]


@pytest.mark.system
def test_an_archive_that_takes_too_much_memory_is_told_of(tmp_path):
    """It runs in its own process, because memory reserved beforehand counts as well."""
    path = tmp_path / "env.tar.xz"
    with tarfile.open(path, "w:xz") as tar:
        tar.add(__file__, arcname="file")
    (tmp_path / "env").mkdir()
    code = f"""
from pathlib import Path
from engine.environments.archive import unpack
from engine.environments.budget import cpu_seconds
from engine.environments.budget import limited_memory
from engine.environments.layout import EnvironmentFailed
with limited_memory(1 << 20):
    try:
        unpack(Path({str(path)!r}), Path({str(tmp_path / "env")!r}))
    except EnvironmentFailed as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"'{path}' is not unpacked: it takes too much memory"


@pytest.mark.parametrize(
    ("kind", "size", "seconds"),
    [("archive", 600_000, 60), ("archive", 2 << 30, 2108), ("requirements", 1, 0)],
)
def test_the_cpu_of_a_build_is_limited_by_what_its_archive_weighs(tmp_path, kind, size, seconds):
    with (tmp_path / "source").open("wb") as file:
        file.truncate(size)
    assert cpu_seconds(kind, tmp_path / "source") == seconds


@pytest.mark.system
def test_a_process_that_has_used_its_cpu_is_told_so_by_a_signal():
    code = "from engine.environments.budget import limit_cpu\nlimit_cpu(1)\nwhile True: pass"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGXCPU
