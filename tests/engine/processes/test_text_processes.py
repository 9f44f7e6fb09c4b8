"""Text workers as processes: what they are sent, what they say, and how they end."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from actors.generation.texts import TextWorker, TextWorkerDied
from actors.values.generation.asking import CHAT, TEXT, Ask, Sampling
from actors.wire.delivered import Delivered
from actors.wire.text_frames import pack_ask, pack_ids, unpack_ids
from engine.processes.text.process import TextLauncher
from tests.support.llm import spelt
from tests.support.tiers import mostly_long

pytestmark = pytest.mark.system

CONTEXT = {"context": 2048}
TOKENIZER = spelt.byte_level()
STREAMS = 32
LINES = [f"the lamp was lit {number} times 🕯, said Ibáñez" for number in range(STREAMS)]


class Told:
    """What a worker has printed."""

    def __init__(self):
        self.lines = []

    def __call__(self, lines, dropped):
        self.lines += lines


@pytest.fixture
async def launch(tmp_path):
    workers: list[TextWorker] = []

    async def launched(*, template=spelt.TEMPLATE, ready=True, **more):
        folder = spelt.write(tmp_path / f"m{len(workers)}", TOKENIZER, template=template)
        more = {"report": Told(), "environ": dict(os.environ), **more}
        worker = await TextLauncher(str(folder), model="tiny", **more).launch()
        workers.append(worker)
        if ready:
            (kind, _), _ = await worker.receive()
            assert kind == "ready"
        return worker

    yield launched
    for worker in workers:
        await worker.close()


def ask(worker, number, asked, limits=CONTEXT):
    document, body = pack_ask(asked.document())
    worker.send(["open", number, document, limits], body)


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def chat(text="hi", **more):
    return Ask(CHAT, messages=[{"role": "user", "content": text}], **more)


def helpers_of(worker):
    return Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_a_request_goes_in_as_text_and_comes_back_as_text(launch):
    worker = await launch()

    ask(worker, 7, chat("the"))
    head, body = await worker.receive()
    assert head == ["opened", 7, [len(unpack_ids(body))], {}, {}]
    assert TOKENIZER.decode(unpack_ids(body)) == "the"
    worker.send(["tokens", [[7, 0, 4, "stop", None]]], pack_ids([*ids_of("lit")[:3], spelt.END]))

    (kind, [[number, choice, piece]]), _ = await worker.receive()
    assert (kind, number, choice) == ("pieces", 7, 0)
    assert piece["text"] == TOKENIZER.decode(ids_of("lit")[:3])
    assert piece["finish"] == "stop"
    await worker.close()
    await worker.close()
    assert not alive(worker.pid)
    worker.send(["close", 7])  # it is lost
    with pytest.raises(TextWorkerDied, match="was closed"):
        await worker.receive()


async def test_what_can_not_be_loaded_is_said(tmp_path, launch):
    worker = await launch(ready=False, memory=0)
    assert (await worker.receive())[0][0] == "ready"
    absent = TextLauncher(str(tmp_path / "absent"), model="m", environ=dict(os.environ), report=Told())

    worker = await absent.launch()
    (kind, reason), _ = await worker.receive()
    assert kind == "failed"
    assert "there is no folder" in reason
    with pytest.raises(TextWorkerDied, match="exit status 0"):
        await worker.receive()
    await worker.close()


HOSTILE = {
    "a long loop": "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "a long text": "{{ messages[0].content * 10**10 }}",
    "a constant": "{{ 'a' * 10**10 }}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling": "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a join": "{{ (range(99999)|list * 99999)|join('xxxxxxxxxxxxxxxx') }}",
    "a width": "{{ '%1000000000000s' % messages[0].content }}",
    "replacing": "{{ ('a' * 10**7).replace('a', 'b' * 10**7) }}",
    "one operation": "{{ 10 ** (10 ** messages[0].content|length ** 9) }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_long(HOSTILE, "a long text", "recursion", "a macro without end"))
async def test_a_hostile_template_is_refused_and_other_requests_go_on(launch, name):
    worker = await launch(template=HOSTILE[name])

    ask(worker, 1, chat("hi there"))
    ask(worker, 2, Ask(TEXT, prompts=["the"]))
    heads = {}
    for _ in range(2):
        head, _ = await worker.receive()
        heads[head[1]] = head

    assert heads[1][:3] == ["refused", 1, 400]
    assert heads[2][0] == "opened"


@pytest.mark.long
async def test_a_long_prompt_is_refused_or_taken_and_holds_no_other_stream(launch):
    worker = await launch()
    ask(worker, 1, Ask(TEXT, prompts=["the"]))
    assert (await worker.receive())[0][0] == "opened"

    ask(worker, 2, Ask(TEXT, prompts=["the lamp was lit, " * 250_000]), {"context": 10_000_000})
    ask(worker, 3, Ask(TEXT, prompts=["x" * 10_000_000]))
    ask(worker, 4, chat("the"))
    worker.send(["tokens", [[1, 0, 1, "", None]]], pack_ids(ids_of("x")))
    answers = [await worker.receive() for _ in range(4)]

    assert answers[0][0][0] == "pieces"
    by_stream = {head[1]: (head, body) for head, body in answers if head[0] != "pieces"}
    assert by_stream[3][0][2] == 400
    assert "maximum context length is 2048 tokens" in by_stream[3][0][3]
    head, body = by_stream[2]
    assert head[0] == "opened"
    assert len(unpack_ids(body)) == head[2][0] > 1_000_000
    assert by_stream[4][0][0] == "opened"
    assert answers[-1][0][1] == 2


async def test_streams_go_on_in_another_worker_without_a_loss(launch):
    asked = Ask(TEXT, prompts=["the"], sampling=Sampling(stop=["times 🕯, said Ibáñez!"]))
    first = await launch()
    told = dict.fromkeys(range(STREAMS), "")
    counted = dict.fromkeys(range(STREAMS), 0)

    def take(head):
        assert head[0] == "pieces"
        for number, _, piece in head[1]:
            told[number] += piece.get("text", "")
            counted[number] += piece["tokens"]

    for number in range(STREAMS):
        ask(first, number, asked)
    for _ in range(STREAMS):
        assert (await first.receive())[0][0] == "opened"
    given = {number: ids_of(LINES[number]) for number in range(STREAMS)}
    upto = {number: number % 11 + 3 for number in range(STREAMS)}
    for number in range(STREAMS):
        first.send(["tokens", [[number, 0, upto[number], "", None]]], pack_ids(given[number][: upto[number]]))
    while sum(map(len, told.values())) < STREAMS * 3:
        take((await first.receive())[0])
    os.kill(first.pid, signal.SIGKILL)
    said = ""
    while not said:
        try:
            take((await first.receive())[0])
        except TextWorkerDied as error:
            said = str(error)
    assert "signal 9" in said

    second = await launch()
    for number in range(STREAMS):
        document, body = pack_ask(asked.document())
        delivered = Delivered()
        delivered.take(told[number], "", ())
        entry = [0, upto[number], counted[number], delivered.told, "", None]
        second.send(
            ["restore", number, document, CONTEXT, [entry]], body + pack_ids(given[number][: upto[number]])
        )
        rest = given[number][upto[number] :]
        second.send(["tokens", [[number, 0, len(rest), "length", None]]], pack_ids(rest))
    while counted != {number: len(ids) for number, ids in given.items()}:
        take((await second.receive())[0])

    assert told == dict(enumerate(LINES))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGXCPU, "takes too much processor time"),
        (signal.SIGABRT, "takes too much memory"),
        (signal.SIGKILL, "was ended"),
        (signal.SIGSEGV, "signal 11"),
    ],
)
async def test_a_request_whose_helper_is_ended_is_refused_alone(launch, number, said):
    worker = await launch()
    ask(worker, 1, Ask(TEXT, prompts=["the"]))
    assert (await worker.receive())[0][0] == "opened"
    (helper,) = helpers_of(worker)
    os.kill(int(helper), signal.SIGSTOP)
    ask(worker, 2, Ask(TEXT, prompts=["the"]))
    worker.send(["tokens", [[1, 0, 1, "", None]]], pack_ids(ids_of("x")))
    assert (await worker.receive())[0][0] == "pieces"  # so the helper has the request

    os.kill(int(helper), number)
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(helper), signal.SIGCONT)
    head, _ = await worker.receive()

    assert head[:3] == ["refused", 2, 400]
    assert said in head[3]
    ask(worker, 3, Ask(TEXT, prompts=["the"]))
    assert (await worker.receive())[0][:2] == ["opened", 3]


async def test_a_request_waits_for_no_helper_that_is_busy(launch):
    worker = await launch()
    (helper,) = helpers_of(worker)
    os.kill(int(helper), signal.SIGSTOP)

    for number in range(5):
        ask(worker, number, Ask(TEXT, prompts=["the"]))

    assert sorted([(await worker.receive())[0][1] for _ in range(4)]) == [1, 2, 3, 4]
    assert 2 <= len(helpers_of(worker)) <= 4
    os.kill(int(helper), signal.SIGCONT)
    assert (await worker.receive())[0][:2] == ["opened", 0]


async def test_a_request_that_is_closed_is_forgotten(launch):
    worker = await launch()

    ask(worker, 1, Ask(TEXT, prompts=["the lamp was lit, " * 50_000]), {"context": 10_000_000})
    ask(worker, 2, Ask(TEXT, prompts=["the"]))
    worker.send(["close", 1])
    worker.send(["tokens", [[1, 0, 1, "", None]]], pack_ids([300]))

    assert (await worker.receive())[0][1] == 2
    ask(worker, 3, Ask(TEXT, prompts=["the"]))
    assert (await worker.receive())[0][1] == 3


async def test_a_worker_that_is_killed_says_so(launch):
    worker = await launch()
    helpers = helpers_of(worker)
    assert helpers

    worker.kill()

    with pytest.raises(TextWorkerDied, match="the server asked for it"):
        await worker.receive()
    await worker.close()
    with trio.fail_after(10):  # the kernel ends them behind their parent
        while any(map(alive, helpers)):  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_a_worker_that_reads_no_orders_is_ended(launch):
    worker = await launch(backlog=1024 * 1024)
    os.kill(worker.pid, signal.SIGSTOP)

    for _ in range(12):
        worker.send(["tokens", []], bytes(256 * 1024))

    with pytest.raises(TextWorkerDied, match=r"left \d+ bytes of orders unread"):
        await worker.receive()


async def test_orders_that_wait_are_sent_once_the_worker_reads(launch):
    worker = await launch()
    os.kill(worker.pid, signal.SIGSTOP)
    for number in range(9):
        ask(worker, number, Ask(TEXT, prompts=["the lamp " * 50_000]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.testing.wait_all_tasks_blocked)
    os.kill(worker.pid, signal.SIGCONT)

    assert sorted([(await worker.receive())[0][1] for _ in range(9)]) == list(range(9))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"\xff" * 64, "it sent a text frame of"),
        (b"\6\0\0\0\2\0\0\0{}", "no list that begins"),
        (b"", "exit status 3"),
    ],
)
async def test_what_is_no_frame_ends_the_worker(launch, tmp_path, written, said):
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys, time\nos.write(int(sys.argv[2]), {written!r})\nsys.exit(3)\n"
    )
    program.chmod(0o755)

    worker = await launch(interpreter=str(program), ready=False)

    with pytest.raises(TextWorkerDied, match=said):
        await worker.receive()


async def test_a_python_that_is_not_there_is_an_error_of_the_system(launch):
    with pytest.raises(OSError, match="No such file"):
        await launch(interpreter="/nowhere/python")


async def test_what_a_worker_prints_is_told(launch):
    told = Told()
    worker = await launch(template="{{ 10 ** (10 ** 9) }}", report=told)
    (helper,) = helpers_of(worker)

    os.kill(int(helper), signal.SIGKILL)
    ask(worker, 1, Ask(TEXT, prompts=["the"]))
    await worker.receive()
    await worker.close()

    assert any("a helper of the text worker was ended (signal 9)" in line for line in told.lines)
