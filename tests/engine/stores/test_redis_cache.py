"""Answers in a Redis server: what is written there, the rights, and what a failing server costs."""

import ssl
from contextlib import asynccontextmanager
from functools import partial

import pytest
import redis
import trio

from actors.caching.far_cache import FarCache, MalformedEntry
from actors.caching.policy.cache import KeptAnswer, KeptOutput, entry_size
from actors.values.datatypes import DataType
from engine.settings.cache import RedisCache, RedisTls
from engine.stores.redis_store import PREFIX, RedisStore, patience
from tests.support.certificates import Authority
from tests.support.logged import Logged
from tests.support.model_doubles import Context
from tests.support.redis_double import RedisDouble

KEY = bytes(range(32))
OUTPUTS = (KeptOutput("Y", DataType.FP32, (1, 2), bytes(8)),)
ENTRY = KeptAnswer(OUTPUTS, entry_size(OUTPUTS))


@pytest.fixture
def server():
    with RedisDouble() as server:
        yield server


def place(server, **options):
    return RedisCache(host="127.0.0.1", port=server.port, **options)


def outputs_of(entry):
    return [(each.name, each.datatype, each.shape, each.data) for each in entry.outputs]


# -- the store


def test_what_is_put_is_got_by_another_server_too(server):
    one, other = RedisStore(place(server)), RedisStore(place(server))
    assert one.get(KEY) is None
    one.put(KEY, ENTRY)
    assert outputs_of(other.get(KEY)) == outputs_of(ENTRY)
    assert list(server.values) == [(0, PREFIX + KEY.hex().encode())]


def test_each_database_is_apart(server):
    RedisStore(place(server, db=3)).put(KEY, ENTRY)
    assert RedisStore(place(server)).get(KEY) is None
    assert RedisStore(place(server, db=3)).get(KEY) is not None


def test_what_somebody_else_wrote_there_is_no_entry(server):
    server.values[0, PREFIX + KEY.hex().encode()] = b"something"
    with pytest.raises(MalformedEntry):
        RedisStore(place(server)).get(KEY)


def test_credentials_are_shown():
    with RedisDouble(credentials=("me", "secret")) as server:
        RedisStore(place(server, user="me", password="secret")).try_it()
        with pytest.raises(redis.AuthenticationError):
            RedisStore(place(server)).try_it()
        with pytest.raises(redis.AuthenticationError):
            RedisStore(place(server, user="me", password="wrong")).try_it()


@pytest.mark.slow
def test_tls_makes_sure_of_both_sides(tmp_path):
    authority = Authority(tmp_path)
    here, client = authority.sign("redis"), authority.sign("client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.root))
    context.load_cert_chain(here.certificate, here.key)
    context.verify_mode = ssl.CERT_REQUIRED
    files = {"cacert": str(authority.root), "cert": str(client.certificate), "key": str(client.key)}
    with RedisDouble(context=context) as server:
        RedisStore(place(server, tls=RedisTls(**files))).try_it()
        RedisStore(place(server, tls=RedisTls(**files, sni="localhost"))).try_it()
        with pytest.raises(redis.ConnectionError, match=r"(?i)certificate"):
            RedisStore(place(server, tls=RedisTls(**files, sni="elsewhere.example"))).try_it()
        with pytest.raises(redis.ConnectionError, match=r"(?i)certificate"):
            RedisStore(place(server, tls=RedisTls())).try_it()


def test_a_connection_that_was_closed_meanwhile_is_made_anew(server):
    store = RedisStore(place(server))
    store.put(KEY, ENTRY)
    server.stop()
    server.start()
    assert store.get(KEY) is not None


# -- and the cache over it


class Running:
    """A far cache whose actors run."""

    def __init__(self, settings):
        self.logged = Logged()
        self.cache = FarCache(
            RedisStore(settings),
            threads=settings.pool_size,
            patience=patience(settings),
            log=self.logged,
        )

    async def look_up(self, key=KEY):
        """Return what was found; False if the cache asked no server."""
        answers, answered = [], trio.Event()

        def found(entry):
            answers.append(entry)
            answered.set()

        if not self.cache.look_up(key, found):
            return False
        await answered.wait()
        assert len(answers) == 1
        return answers[0]

    async def until(self, condition):
        with trio.fail_after(30):
            while not condition():  # noqa: ASYNC110  # a thread brings it about
                await trio.sleep(0.002)


class Starting(Context):
    def __init__(self, task_status):
        self._task_status = task_status

    def started(self, value=None):
        self._task_status.started(value)


@asynccontextmanager
async def running(settings):
    made = Running(settings)
    async with trio.open_nursery() as nursery:
        for actor in (made.cache.looking.run, made.cache.inserting.run, made.cache.watch):
            await nursery.start(partial(begin, actor))
        yield made
        nursery.cancel_scope.cancel()


async def begin(actor, task_status):
    await actor(Starting(task_status))


async def test_what_was_inserted_is_found(server):
    async with running(place(server)) as far:
        await far.until(lambda: far.cache.available)
        assert await far.look_up() is None
        far.cache.insert(KEY, ENTRY)
        await far.until(lambda: server.values)
        assert outputs_of(await far.look_up()) == outputs_of(ENTRY)
        assert (far.cache.counts.hits, far.cache.counts.misses, far.cache.counts.errors) == (1, 1, 0)


@pytest.mark.long
@pytest.mark.slow
async def test_nobody_asks_before_there_was_a_sign_of_life(server):
    server.stop()
    async with running(place(server)) as far:
        await far.until(lambda: far.logged)
        assert far.logged[0][0] == "cache_unavailable"
        assert await far.look_up() is False
        assert far.cache.counts.skipped == 1
        server.start()
        await far.until(lambda: far.cache.available)
        assert [event for event, *_ in far.logged] == ["cache_unavailable", "cache_available"]


@pytest.mark.slow
async def test_a_server_that_dies_is_asked_no_more_until_it_is_back(server):
    async with running(place(server)) as far:
        await far.until(lambda: far.cache.available)
        far.cache.insert(KEY, ENTRY)
        await far.until(lambda: server.values)
        server.stop()
        assert [await far.look_up() for _ in range(5)] == [None, None, None, False, False]
        server.start()
        await far.until(lambda: far.cache.available)
        assert await far.look_up() is not None


@pytest.mark.slow
async def test_a_server_that_hangs_holds_nobody_up_for_long(server):
    settings = place(server, socket_timeout=0.05, wait_timeout=0.05, connect_timeout=0.05, pool_size=2)
    async with running(settings) as far:
        await far.until(lambda: far.cache.available)
        server.hang()
        with trio.fail_after(20):  # it would be for ever
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(far.look_up)
            assert await far.look_up() is False
        assert not far.cache.available
        server.go_on()
        await far.until(lambda: far.cache.available)


async def test_an_entry_that_is_none_is_a_miss_and_says_nothing_about_the_server(server):
    server.values[0, PREFIX + KEY.hex().encode()] = b"something"
    async with running(place(server)) as far:
        await far.until(lambda: far.cache.available)
        assert [await far.look_up() for _ in range(5)] == [None] * 5
        assert far.cache.available
        assert far.cache.counts.errors == 5
