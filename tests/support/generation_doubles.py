"""Stand-ins around a language model's generator: an engine on cue, and a text worker of single characters.

The tokenizer of these tests has one token for each character, whose id is its code point. Id 0 ends a text.
"""

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import trio

from actors.generation.engine import Engine, engine_spec
from actors.generation.policy.placement import LivingEngine
from actors.generation.texts import TextWorker, TextWorkerDied, TextWorkers
from actors.seams.bell import Bell
from actors.serving.instances.batches import InFlight
from actors.serving.standing import InstanceState
from actors.serving.validation import Validator
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, TritiumError, WorkerLost
from actors.values.generation.sleeping import SleepState
from actors.values.requests import InferResponse
from actors.values.specs import InstanceSpec
from actors.values.tensors import Tensor, pack_bytes
from actors.wire.delivered import Delivered
from actors.wire.text_frames import decode_head, encode, lengths, pack_ids, unpack_ask, unpack_ids
from tests.support.doubles import Double, ServedDouble
from tests.support.model_doubles import make_spec

NO_SLOT: Any = None


class FakeEngine(Engine):
    """Holds requests until the test answers them; at most `room` at once."""

    def __init__(self, room=1000, context=100):
        self.room = room
        self.context = context
        self.told = {}  # more of its facts
        self.held = []
        self.cancelled = []
        self.pins = 0
        self.refusal = None
        self.resumes: list[str] = []
        self.identity = "a"
        self.alone = False  # no other instance lives than the one that leaves
        self._model = ServedDouble()
        self._left = Bell()
        self.leaving: Any = None  # an instance that is to end, and has what was held when that began
        self._validate = Validator(engine_spec(make_spec()))

    @property
    def called_off(self):
        """What an instance that leaves was told to end, and has not ended."""
        return [request for request in self.held if request in self.cancelled]

    @property
    def model(self):
        return self._model

    @property
    def facts(self):
        return {
            "context": self.context,
            "resumes": self.resumes,
            "identity": self.identity,
            **self.told,
        }

    def identity_of(self, request):
        return self.identity

    def serves(self, identity):
        return self.identity == identity and not self.alone

    async def submit(self, request):
        heard = 0
        while True:
            try:
                self.submit_nowait(request)
            except trio.WouldBlock:
                heard = await self._left.wait(heard)
                if request.cancelled:
                    raise Cancelled("") from None
            else:
                return

    def submit_nowait(self, request):
        if self.refusal is not None:
            raise self.refusal
        if len(self.held) >= self.room or self._validate.must_walk(request):
            raise trio.WouldBlock
        self._validate(request)
        self.held.append(request)

    def cancel(self, request):
        request.cancelled = True
        if request in self.held:
            self.cancelled.append(request)
            if not self._leaves(request):  # else the test says when
                self._forget(request)
                request.reply.put(TritiumError("cancelled"), final=True)
        self._left.ring()

    def leaves(self):
        """Return an instance that is to end, with all that is held now."""
        self.leaving = InstanceState(InstanceSpec(name="model_0"), "0")
        for number, request in enumerate(self.held):
            batch = InFlight(number, [request], NO_SLOT, alone=False, began_at=0.0)
            self.leaving.held.open[number] = batch
        return self.leaving

    def _leaves(self, request):
        batches = () if self.leaving is None else self.leaving.held.open.values()
        return any(request in batch.requests for batch in batches)

    def ends(self, request, text=""):
        """The instance that leaves has heard that a request is called off, and gives its last word."""
        assert request in self.cancelled
        if text:
            self.says(request, text)
        self._forget(request)
        request.reply.put(InferResponse(model_name="engine", model_version=1, outputs=[]), final=True)

    def _forget(self, request):
        self.held.remove(request)
        if self._leaves(request):
            held = self.leaving.held
            held.open = {each: batch for each, batch in held.open.items() if request not in batch.requests}
            held.note_end()
        self._left.ring()

    def pin(self):
        self.pins += 1

    def unpin(self):
        self.pins -= 1

    def prompt(self, request):
        return "".join(map(chr, unpack_ids(bytes(request.inputs[0].data))))

    def sampling(self, request):
        return json.loads(request.inputs[1].as_numpy()[0])

    def says(self, request, text, *, finish="", chances=None, facts=None):
        """Give more of the answer to a request, and the end with a `finish`."""
        self.gives(request, [*map(ord, text)], finish=finish, chances=chances, facts=facts)

    def gives(self, request, ids, *, finish="", chances=None, facts=None):
        """The same, in ids."""
        outputs = [Tensor("token_ids", DataType.INT32, (len(ids),), pack_ids(ids))]
        if chances is not None:
            outputs.append(_json("chances", chances))
        if facts is not None:
            outputs.append(_json("facts", facts))
        part = InferResponse(
            model_name="engine",
            model_version=1,
            outputs=outputs,
            parameters={"finish": finish} if finish else None,
        )
        if finish:
            self._forget(request)
        request.reply.put(part, final=bool(finish))

    def embeds(self, request, vector):
        """Answer a request with an embedding."""
        data = np.asarray(vector, np.float32).tobytes()
        outputs = [Tensor("embedding", DataType.FP32, (len(vector),), data)]
        self._forget(request)
        request.reply.put(InferResponse(model_name="engine", model_version=1, outputs=outputs), final=True)

    def dies(self, *, blamed=True):
        """Lose all requests, as when the worker dies."""
        held, self.held = self.held, []
        if self.leaving is not None:
            self.leaving.held.clear()
        self._left.ring()
        for request in held:
            request.reply.put(WorkerLost("it was lost", how="the engine died", blamed=blamed), final=True)

    def fails(self, request, error):
        self._forget(request)
        request.reply.put(error, final=True)


class SeveralEngines(FakeEngine):
    """Engines that are known by their names. Each holds what it was chosen for."""

    def __init__(self, names="ab", *, blocks=0, size=4, step_tokens=0, context=1000):
        super().__init__(context=context)
        self.told = {"cache": {"block_size": size, "blocks": blocks}, "step_tokens": step_tokens}
        self.names = [*names]
        self.down = None  # why no request waits for the next engine
        self.down_for_new = False  # what goes on does

    @property
    def engines(self):
        return {name: LivingEngine(name, self.facts) for name in self.names}

    def check(self, *, resumed):
        if self.down is not None and not (resumed and self.down_for_new):
            raise self.down

    def held_by(self, name):
        """Return the prompts of the runs that an engine has."""
        return [self.prompt(run) for run in self.held if run.reply.seat.account.key == name]

    def ends_instance(self, name):
        """Return an instance that is to end: it takes no more, and has what was held by this name."""
        self.names.remove(name)
        self.leaving = InstanceState(InstanceSpec(name=name), "0")
        for number, run in enumerate(self.held):
            if run.reply.seat.account.key == name:
                self.leaving.held.open[number] = InFlight(number, [run], NO_SLOT, alone=False, began_at=0.0)
        return self.leaving

    def loses(self, name):
        """One engine dies."""
        self.names.remove(name)
        lost = [run for run in self.held if run.reply.seat.account.key == name]
        for run in lost:
            self._forget(run)
            run.reply.put(WorkerLost("it was lost", how="the engine died", blamed=False), final=True)


class SleepyWorker(Double):
    """A live worker that sleeps and wakes when the test says so, or at once."""

    has_room = True

    def __init__(self, engine, name="model_0", *, at_once=True):
        self.name = name
        self.at_once = at_once
        self.sleep_state = SleepState.AWAKE
        self.told = []  # orders, in order
        self.open = []
        self.full = False
        self.reports = SimpleNamespace(facts={})
        self._engine = engine

    @property
    def idle(self):
        return not (self.open or self._engine.held)

    def dispatch(self, requests, *, now):
        if self.full:
            raise OSError("no memory")
        (request,) = requests
        self.told.append(json.loads(request.inputs[1].as_numpy()[0]))
        self.open.append(request)
        if self.at_once:
            self.obeys()

    def obeys(self):
        self.open.pop(0).reply.put(
            InferResponse(model_name="engine", model_version=1, outputs=[]), final=True
        )

    def refuses(self, why="it has streams"):
        self.open.pop(0).reply.put(TritiumError(why), final=True)


class DrowsyEngine(FakeEngine):
    """Some instances, which share what is held."""

    def __init__(self, *args, instances=1, at_once=True, **options):
        super().__init__(*args, **options)
        names = [f"model_{number}" for number in range(instances)]
        self.alive = {name: SleepyWorker(self, name, at_once=at_once) for name in names}
        self.ring = lambda: None

    @property
    def workers(self):
        return self.alive

    @property
    def has_requests(self):
        return bool(self.held)

    @property
    def engines(self):
        return {
            each: LivingEngine(name, self.facts)
            for name, each in self.alive.items()
            if each.sleep_state is SleepState.AWAKE
        }

    def loses(self, name="model_0"):
        """The worker of an instance has died, with what it was told."""
        worker = self.alive.pop(name)
        for request in worker.open:
            request.reply.put(WorkerLost("it was lost", how="the engine died", blamed=False), final=True)
        worker.open.clear()
        self.ring()
        return worker

    def starts(self, name="model_0", *, at_once=True):
        """The next worker of an instance is there."""
        self.alive[name] = SleepyWorker(self, name, at_once=at_once)
        self.ring()


class BusyWorker:
    """A live worker that has no room."""

    has_room = False
    sleep_state = SleepState.AWAKE

    def __init__(self, **facts):
        self.reports = SimpleNamespace(facts=facts)


class PagedEngine(FakeEngine):
    """Counts the blocks of its cache: each request holds those of its prompt and of what came of it."""

    def __init__(self, blocks, size=4, context=100):
        super().__init__(context=context)
        self._blocks = blocks
        self._size = size
        self.holds = {}  # by request: tokens

    @property
    def used(self):
        """Blocks that are in use."""
        return sum(-(-tokens // self._size) for tokens in self.holds.values())

    def submit_nowait(self, request):
        tokens = request.inputs[0].shape[0]
        if self.used + -(-tokens // self._size) > self._blocks:
            raise trio.WouldBlock
        super().submit_nowait(request)
        self.holds[request] = tokens

    def gives(self, request, ids, **options):
        self.holds[request] += len(ids)
        if options.get("finish"):
            del self.holds[request]
        super().gives(request, ids, **options)

    def cancel(self, request):
        super().cancel(request)
        if request not in self.held:
            self.holds.pop(request, None)

    def ends(self, request, text=""):
        super().ends(request, text)
        del self.holds[request]

    def dies(self, **options):
        self.holds.clear()
        super().dies(**options)

    def fails(self, request, error):
        del self.holds[request]
        super().fails(request, error)


def _json(name, value):
    return Tensor(name, DataType.BYTES, (1,), pack_bytes((json.dumps(value).encode(),)))


class FakeTextWorker(TextWorker):
    """Does at once what it is ordered. Frames pass through bytes, as over a socket."""

    def __init__(self, *, facts=None, silent=False, ready=True):
        self._reports, self._receive = trio.open_memory_channel(1000)
        self.streams = {}  # number: [ask, {choice: (ids, told, delivered, ended)}]
        self.orders = []
        self.silent = silent  # it hears orders and obeys none
        self.closed = False
        if not ready:  # it still loads
            return
        self.report(["ready", {"eos": [0], "vocabulary": 0x110000, "template": True, **(facts or {})}])

    @property
    def pid(self):
        return 4711

    def report(self, head, body=b""):
        with contextlib.suppress(trio.ClosedResourceError):  # it has died: what it hears is lost
            self._reports.send_nowait(_through_bytes(head, body))

    def dies(self):
        self._reports.close()

    kill = dies

    async def receive(self):
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise TextWorkerDied("the text worker died") from None

    async def close(self):
        self.closed = True

    def send(self, head, body=b""):
        head, body = _through_bytes(head, body)
        self.orders.append(head[0])
        if not self.silent:
            getattr(self, f"_{head[0]}")(body, *head[1:])

    def _open(self, body, number, packed, limits):
        ask, _ = unpack_ask(packed, body)
        self.streams[number] = ask, {}
        if ask["kind"] == "chat":
            prompts = ["".join(message["content"] for message in ask["messages"])]
        else:
            prompts = ask["prompts"]
        if any("refuse" in str(prompt) for prompt in prompts):
            self.report(["refused", number, 400, "it is refused", "prompt"])
            return
        ids = [[*map(ord, prompt)] if isinstance(prompt, str) else prompt for prompt in prompts]
        more = {
            "text": "".join(map(str, prompts)),
            "tokens": {"strings": [*"".join(map(str, prompts))], "longest": 100},
        }
        if ask["kind"] == "detokenize":
            more["detokenized"] = "".join(map(chr, ids[0]))
        self.report(
            ["opened", number, [*map(len, ids)], {}, more],
            pack_ids([each for prompt in ids for each in prompt]),
        )

    def _restore(self, body, number, packed, limits, entries):
        ask, at = unpack_ask(packed, body)
        ids = list(unpack_ids(body[at:]))
        self.streams[number] = ask, {}
        for choice, count, told, delivered, finish, _ in entries:
            own, ids = ids[:count], ids[count:]
            text = "".join(map(chr, own[:told]))
            made = Delivered()
            made.take(text, "", ())
            assert made.told == delivered
            self.streams[number][1][choice] = text, False
            self._more(number, choice, own[told:], finish)
        assert not ids

    def _tokens(self, body, entries):
        ids = list(unpack_ids(body))
        for number, choice, count, finish, _ in entries:
            own, ids = ids[:count], ids[count:]
            if number in self.streams:
                self._more(number, choice, own, finish)
        assert not ids

    def _chances(self, body, number, prompt, entries):
        def named(each):
            return [each[0], chr(each[0]), *each[1:], [*chr(each[0]).encode()]]

        told = [each and [named(each[0]), [*map(named, each[1:])]] for each in entries]
        self.report(["chances", number, prompt, told])

    def _more(self, number, choice, ids, finish):
        ask, choices = self.streams[number]
        text, ended = choices.get(choice, ("", False))
        if ended or not (ids or finish):
            return
        more = "".join(map(chr, ids))
        tokens, reason = len(ids), ""
        for stop in ask["sampling"]["stop"]:
            at = (text + more).find(stop)
            if at >= 0:
                more, finish, reason = (text + more)[len(text) : at], "stop", stop
        choices[choice] = text + more, bool(finish)
        fields = {"text": more, "tokens": tokens, "finish": finish, "reason": reason}
        self.report(["pieces", [[number, choice, {key: value for key, value in fields.items() if value}]]])

    def _ping(self, body):
        self.report(["pong"])

    def _close(self, body, number):
        self.streams.pop(number, None)


def _through_bytes(head, body):
    sent = b"".join(encode(head, body))
    head_size, body_size = lengths(sent)
    return decode_head(sent[8 : 8 + head_size]), sent[8 + head_size : 8 + head_size + body_size]


class FakeTextWorkers(TextWorkers):
    """Gives the workers that a test has put there, or fresh ones."""

    def __init__(self, *coming):
        self.coming = list(coming)
        self.made = []

    async def launch(self):
        worker = self.coming.pop(0) if self.coming else FakeTextWorker()
        self.made.append(worker)
        return worker
