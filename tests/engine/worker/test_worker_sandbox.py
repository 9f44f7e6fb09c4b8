"""What sandboxed code can still do, asked in a process per question; what the kernel lacks is skipped."""

import errno
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from actors.values.confinement import Confinement, Sandbox
from engine.processes.group_plan import NO_GROUP, why_none
from engine.processes.groups import find
from engine.worker import filtering
from engine.worker.limits import VARIABLE
from engine.worker.syscalls import numbers, numbers_of_32_bits
from tests.support.greedy_backends import OPEN_A_SOCKET, START_ONE, UNSHARE

ROOT = Path(__file__).parents[3]
LEVELS = ("off", "guard", "basic", "strict")

ENTER = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from engine.worker import limits
import ctypes, errno, fcntl, json, resource, signal, socket, struct, subprocess, threading

def enter():
    limits.enter(os.environ, {str(ROOT)!r})
    assert not limits.unapplied, limits.unapplied

def tried(deed):
    try:
        eval(deed)
    except OSError as error:
        return error.errno
    return 0

def call(name, *arguments):
    result = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)

"""

EACH_IN_ITS_OWN = """
for deed in json.load(sys.stdin):
    reader, writer = os.pipe()
    if os.fork() == 0:
        enter()
        os.write(writer, json.dumps(tried(deed)).encode())
        os._exit(0)
    os.close(writer)
    print(os.fdopen(reader).read(), flush=True)
"""


def landlock_version():
    probe = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))"
    return int(subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True).stdout)


needs_landlock = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
needs_scopes = pytest.mark.skipif(landlock_version() < 6, reason="Landlock of this kernel knows no scopes")


def ask_each(level, deeds, *, childless=False, read=(), write=()):
    """Evaluate expressions, each in a sandbox of its own: 0 for one that succeeds, else its error number."""
    wanted = {"sandbox": level, "childless": childless, "read": list(read), "write": list(write)}
    done = subprocess.run(
        [sys.executable, "-c", ENTER + EACH_IN_ITS_OWN],
        env={**os.environ, VARIABLE: json.dumps(wanted)},
        input=json.dumps(list(deeds)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [int(line) for line in done.stdout.splitlines() if line.isdecimal()]
    assert len(answers) == len(deeds), done.stderr
    return dict(zip(deeds, answers, strict=True))


def ask(level, deed, **options):
    """Return 0 if an expression succeeds when evaluated in a sandbox, or else its error number."""
    return ask_each(level, [deed], **options)[deed]


pytestmark = [pytest.mark.slow, pytest.mark.system]


# What an expression fails with at each level: off, guard, basic, strict. None: that is not ours to say.
DEEDS = [
    ("socket.socket()", 0, 0, errno.EACCES, errno.EACCES),
    ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", 0, 0, errno.EACCES, errno.EACCES),
    ("socket.socket(socket.AF_UNIX)", 0, 0, 0, errno.EACCES),
    ("socket.socketpair()", 0, 0, 0, 0),
    ("socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)", 0, 0, 0, 0),
    ("socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", 0, 0, 0, errno.EACCES),
    ("threading.Thread(target=int).start()", 0, 0, 0, 0),
    ("subprocess.run(['/bin/sh', '-c', ':'], check=True)", 0, 0, 0, 0),
    ("os.waitpid(os.fork() or os._exit(0), 0)", 0, 0, 0, 0),
    ("os.setpgid(0, 0)", 0, 0, 0, errno.EPERM),
    ("os.memfd_create('of-large-calls')", 0, 0, 0, 0),
    ("call('ptrace', 0, 0, 0, 0)", 0, 0, errno.EPERM, errno.EPERM),
    ("call('unshare', 0x10000000)", None, None, errno.EPERM, errno.EPERM),
    ("call('setns', 0, 0)", None, errno.EPERM, errno.EPERM, errno.EPERM),
    (
        "call('mount', b'none', b'/nowhere', b'nonesuch', 0, None)",
        None,
        errno.EPERM,
        errno.EPERM,
        errno.EPERM,
    ),
    ("call('syscall', 425, 1, 0)", None, None, errno.EPERM, errno.EPERM),
    ("call('syscall', 1000, 0)", errno.ENOSYS, errno.ENOSYS, errno.ENOSYS, errno.ENOSYS),
    ("os.kill(os.getpid(), 0)", 0, 0, 0, 0),
    ("resource.prlimit(0, resource.RLIMIT_CPU)", 0, 0, 0, 0),
    ("resource.prlimit(os.getpid(), resource.RLIMIT_CPU)", 0, 0, 0, 0),
    ("resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", 0, 0, 0, 0),
    ("os.nice(1)", 0, 0, 0, 0),
    ("os.setpriority(os.PRIO_PROCESS, 0, 19)", 0, 0, 0, 0),
    ("os.setpriority(os.PRIO_USER, 0, 0)", None, None, errno.EPERM, errno.EPERM),
    ("os.sched_setaffinity(0, os.sched_getaffinity(0))", 0, 0, 0, 0),
    ("os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))", 0, 0, 0, 0),
    ("os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))", 0, 0, 0, 0),
    ("fcntl.fcntl(0, fcntl.F_GETFD)", 0, 0, 0, 0),
    ("fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())", 0, 0, errno.EPERM, errno.EPERM),
    ("fcntl.fcntl(0, 10, signal.SIGKILL)", 0, 0, errno.EPERM, errno.EPERM),
    (
        "fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack('i', 0))",
        *(0, 0, errno.EPERM, errno.EPERM),
    ),
    ("fcntl.ioctl(0, 0x5412, b'x')", None, errno.EPERM, errno.EPERM, errno.EPERM),
    ("call('prctl', 1, 0, 0, 0, 0)", 0, 0, 0, errno.EPERM),
    ("call('prctl', 36, 0, 0, 0, 0)", 0, 0, 0, errno.EPERM),
    ("os.utime('/proc/self/fd/0')", None, None, None, errno.EPERM),
    ("os.chmod('/dev/null', 0o666)", None, None, None, errno.EPERM),
    ("call('shmget', 0, 4096, 0o1600)", None, None, None, errno.EPERM),
    ("call('personality', 0xffffffff)", 0, 0, 0, 0),
    ("call('personality', 0x40000)", None, None, None, errno.EPERM),
]


@pytest.mark.parametrize("level", LEVELS)
def test_what_the_filter_refuses_at_each_level(level):
    expected = {deed: at[LEVELS.index(level)] for deed, *at in DEEDS}
    expected = {deed: error for deed, error in expected.items() if error is not None}
    assert ask_each(level, list(expected)) == expected


def test_a_clone_into_a_new_namespace_is_refused_as_well():
    clone = "call('syscall', 56, 0x10000000 | 17, 0, 0, 0, 0) or os._exit(0)"
    if os.uname().machine != "x86_64":
        pytest.skip("the number of the system call is that of x86-64")
    assert ask("basic", clone) == errno.EPERM


@pytest.mark.parametrize("level", LEVELS)
def test_without_children_threads_start_and_processes_do_not(level):
    assert ask(level, "threading.Thread(target=int).start()", childless=True) == 0
    for deed in ("os.fork()", "subprocess.run(['/bin/sh'])", "os.posix_spawn('/bin/sh', ['sh'], {})"):
        assert ask(level, deed, childless=True) == errno.EAGAIN


@needs_scopes
@pytest.mark.parametrize("level", ["basic", "strict"])
def test_no_process_outside_can_be_signalled(level):
    assert ask(level, f"os.kill({os.getpid()}, 0)") == errno.EPERM


@pytest.mark.parametrize(
    "deed",
    [
        "resource.prlimit({other}, resource.RLIMIT_CPU, (1, 1))",
        "resource.prlimit({other}, resource.RLIMIT_CPU)",
        "os.setpriority(os.PRIO_PROCESS, {other}, 19)",
        "os.sched_setscheduler({other}, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setparam({other}, os.sched_param(0))",
        "call('syscall', {ioprio_set}, 1, {other}, 0)",
        "call('syscall', {kcmp}, os.getpid(), {other}, 0, 0, 0)",
    ],
)
def test_no_limit_priority_or_page_of_another_process_can_be_changed(deed):
    arm = os.uname().machine == "aarch64"
    numbers = {"ioprio_set": 30 if arm else 251, "kcmp": 272 if arm else 312}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        asked = deed.format(other=other.pid, **numbers)
        assert ask("off", asked) == 0
        for level in ("basic", "strict"):
            assert ask(level, asked) == errno.EPERM, level
        other.communicate(b"\n")


def test_a_strict_sandbox_cannot_pin_another_process():
    # No core that there is: the kernel would refuse it, were it asked.
    pin = f"os.sched_setaffinity({os.getpid()}, [])"
    assert (ask("off", pin), ask("strict", pin)) == (errno.EINVAL, 0)
    one = {min(os.sched_getaffinity(0))}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        before = os.sched_getaffinity(other.pid)
        assert ask("strict", f"os.sched_setaffinity({other.pid}, {one})") == 0
        assert os.sched_getaffinity(other.pid) == before
        other.communicate(b"\n")


@pytest.mark.parametrize(
    "binding",
    [
        pytest.param({"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}, marks=pytest.mark.long),
        {"GOMP_CPU_AFFINITY": str(min(os.sched_getaffinity(0)))},
    ],
)
def test_openmp_that_is_to_bind_its_threads_goes_on_in_a_strict_sandbox(binding):
    pytest.importorskip("torch")
    code = "enter(); import torch; torch.set_num_threads(2); print((torch.ones(500, 500) * 2).sum().item())"
    wanted = json.dumps({"sandbox": "strict"})
    done = subprocess.run(
        [sys.executable, "-c", ENTER + code],
        env={**os.environ, VARIABLE: wanted, "OMP_NUM_THREADS": "2", **binding},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "500000.0\n", done.stderr


@needs_landlock
@pytest.mark.parametrize("level", ["basic", "strict"])
@pytest.mark.parametrize(("file", "mode"), [("environ", "r"), ("maps", "r"), ("mem", "r+b")])
def test_no_process_outside_can_be_looked_into(level, file, mode):
    assert ask(level, f"open('/proc/{os.getpid()}/{file}', '{mode}').close()") in {errno.EACCES, errno.EPERM}
    assert ask(level, f"open('/proc/self/{file}', 'rb').close()") == 0


def test_a_basic_sandbox_moves_files_from_directory_to_directory(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "file").write_text("content")
    assert ask("basic", f"os.rename('{tmp_path}/here/file', '{tmp_path}/there/file')") == 0


@needs_landlock
def test_a_strict_sandbox_reads_and_writes_only_what_it_is_given(tmp_path):
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("content")
    given = {"read": [str(tmp_path / "read")], "write": [str(tmp_path / "write"), str(tmp_path / "missing")]}
    errors = {
        f"open('{tmp_path}/read/file').close()": 0,
        f"open('{tmp_path}/read/file', 'a').close()": errno.EACCES,
        f"open('{tmp_path}/write/new', 'w').close()": 0,
        f"os.remove('{tmp_path}/write/new')": 0,
        f"open('{tmp_path}/other/file').close()": errno.EACCES,
        f"os.listdir('{tmp_path}')": errno.EACCES,
        f"os.remove('{tmp_path}/other/file')": errno.EACCES,
        "open('/dev/null', 'w').close()": 0,
        "open('/proc/self/status').close()": 0,
        f"open('/proc/{os.getpid()}/environ').close()": errno.EACCES,
    }
    assert ask_each("strict", list(errors), **given) == errors


def test_a_strict_sandbox_has_no_capabilities_and_gains_none_by_running_programs():
    code = "import os; lines = open('/proc/self/status').read(); print(*[l.split()[1] for l in lines.splitlines() if l[:6] in ('CapEff', 'CapPrm')])"
    deed = f"print(subprocess.check_output([sys.executable, '-c', {code!r}], text=True))"
    wanted = {"sandbox": "strict"}
    done = subprocess.run(
        [sys.executable, "-c", f"{ENTER}enter()\n{deed}"],
        env={**os.environ, VARIABLE: json.dumps(wanted)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["0" * 16] * 2, done.stderr


def test_a_machine_without_known_numbers_is_told_and_not_guessed():
    with pytest.raises(OSError, match="no filter for riscv64"):
        filtering.program("basic", childless=False, machine="riscv64")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("level", LEVELS)
def test_every_jump_of_a_filter_stays_within_it(machine, level):
    filter_ = filtering.program(level, childless=True, machine=machine)
    made = list(struct.iter_unpack("=HBBI", filter_))
    for at, (code, if_true, if_false, _) in enumerate(made):
        if code in {0x15, 0x35, 0x45}:
            assert at + 1 + max(if_true, if_false) < len(made)
    assert made[-1][0] == 0x06


OF_32_BITS = """
import mmap
def of_32_bits(number, *arguments):
    # push rbx; mov eax, esi; mov ebx, edx; int 0x80; pop rbx; ret
    code = b"\\x53\\x89\\xf0\\x89\\xd3\\x89\\xf9\\xcd\\x80\\x5b\\xc3"
    pages = mmap.mmap(-1, mmap.PAGESIZE, prot=7)
    pages.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_ulong] * 3)
    call = function(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
    result = call(arguments[1], number, arguments[0])
    if result < 0:
        raise OSError(-result, "")
    return result

"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 runs such programs")
@pytest.mark.parametrize(
    ("call", "free", "guarded"),
    [
        ("20, 0, 0", 0, 0),  # getpid
        ("75, 4, 1", errno.EFAULT, errno.EFAULT),  # setrlimit
        ("21, 0, 0", errno.EFAULT, errno.EPERM),  # mount
        ("88, 0, 0", errno.EINVAL, errno.EPERM),  # reboot
        ("120, 0x8000, 0", None, errno.EPERM),  # clone: a sibling
        ("435, 0, 0", errno.EINVAL, errno.ENOSYS),  # clone3
    ],
)
def test_calls_of_32_bits_are_refused_like_the_others(call, free, guarded):
    def ask_of_32_bits(level, call=call):
        done = subprocess.run(
            [sys.executable, "-c", f"{ENTER}{OF_32_BITS}enter()\nprint(tried('of_32_bits({call})'))"],
            env={**os.environ, VARIABLE: json.dumps({"sandbox": level})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return int(done.stdout) if done.returncode == 0 else done.returncode

    if ask_of_32_bits("off", "20, 0, 0") == -signal.SIGSEGV:
        pytest.skip("this kernel runs no programs of 32 bits")
    if free is not None and os.geteuid() == 0:
        assert ask_of_32_bits("off") == free
    assert ask_of_32_bits("guard") == guarded
    assert ask_of_32_bits("basic") == -signal.SIGSYS


def test_no_call_of_32_bits_is_forgotten():
    known, of_32_bits = numbers("x86_64"), numbers_of_32_bits()
    refused = {*filtering._GUARD, "clone", "clone3", "ioctl", "prlimit64"}
    assert refused - of_32_bits.keys() == {"kexec_file_load"}
    assert {name: number for name, number in of_32_bits.items() if number > 423} == {
        name: known[name] for name in of_32_bits if known.get(name, 0) > 423
    }
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_32.h")
    if header.exists():
        told = dict(re.findall(r"#define __NR_(\w+) (\d+)", header.read_text()))
        assert {
            name: int(told[name]) for name in of_32_bits.keys() & told.keys()
        }.items() <= of_32_bits.items()


# -- in workers ----------------------------------------------------------------------------------------------


@needs_landlock
@pytest.mark.parametrize("level", [Sandbox.BASIC, Sandbox.STRICT])
async def test_a_model_in_a_sandbox_serves_and_is_refused_what_it_may_not(serve, level):
    async with serve("greedy", confinement=Confinement(sandbox=level)) as model:
        assert (await model.infer(100.0)).tolist() == [[100.0] * 4]
        assert (await model.infer(OPEN_A_SOCKET)).tolist() == [[0.0] * 4]
        assert (await model.infer(UNSHARE)).tolist() == [[0.0] * 4]
        assert (await model.infer(START_ONE)).tolist() == [[1.0] * 4]
        assert not model.state.statistics.deaths
        told = [each for keys in model.logged("worker_unconfined") for each in keys["missing"]]
        assert told == model.info().get("unconfined", [])
        if landlock_version() >= 6:
            # This server may run as root, with an interpreter that no other user can run, and have no groups.
            others = ("a user of its own: ", f"{NO_GROUP}: ")
            assert [each for each in told if not each.startswith(others)] == []
            no_group = level is Sandbox.STRICT and why_none(find()) != ""
            assert any(each.startswith(NO_GROUP) for each in told) is no_group


async def test_without_a_sandbox_a_model_may_use_the_network(serve):
    async with serve("greedy") as model:
        assert (await model.infer(OPEN_A_SOCKET)).tolist() == [[1.0] * 4]
