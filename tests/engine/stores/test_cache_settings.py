"""Which cache the command line and the environment ask for, and what is said where that makes no sense."""

import pytest

from engine.settings.cache import LocalCache, RedisCache, RedisTls
from engine.settings.settings import Settings, SettingsError
from engine.stores.open import CacheUnusable, open_cache
from tests.support.logged import Logged

REPOSITORY = "--model-repository=/models"


def cache_of(*flags, **environ):
    words = [f"--cache-config={flag}" for flag in flags]
    return Settings.from_argv([REPOSITORY, *words], environ).cache


def test_nothing_is_kept_unless_somebody_asks():
    assert Settings.from_argv([REPOSITORY]).cache is None
    assert Settings.from_argv([REPOSITORY, "--response-cache-byte-size=0"]).cache is None


@pytest.mark.parametrize(("size", "expected"), [("1048576", 2**20), ("1MiB", 2**20), ("2 GB", 2 * 10**9)])
def test_a_local_cache_has_a_size(size, expected):
    assert cache_of(f"local,size={size}") == LocalCache(size=expected)


def test_the_old_flag_is_the_same_and_says_so():
    settings = Settings.from_argv([REPOSITORY, "--response-cache-byte-size=5000000000"])
    assert settings.cache == LocalCache(size=5_000_000_000)
    assert "--cache-config=local,size=5000000000" in settings.warnings[0]


def test_redis_needs_a_place_and_nothing_else():
    assert cache_of("redis,host=there", "redis,port=6379") == RedisCache(host="there", port=6379)


def test_every_setting_of_redis_is_read():
    assert cache_of(
        "redis,host=there",
        "redis,port=6380",
        "redis,user=me",
        "redis,password=secret",
        "redis,db=3",
        "redis,connect_timeout=200",
        "redis,socket_timeout=50",
        "redis,pool_size=4",
        "redis,wait_timeout=10",
        "redis,tls_enabled=true",
        "redis,cert=/c.pem",
        "redis,key=/k.pem",
        "redis,cacert=/ca.pem",
        "redis,sni=cache.example",
    ) == RedisCache(
        host="there",
        port=6380,
        user="me",
        password="secret",
        db=3,
        connect_timeout=0.2,
        socket_timeout=0.05,
        pool_size=4,
        wait_timeout=0.01,
        tls=RedisTls(cert="/c.pem", key="/k.pem", cacert="/ca.pem", sni="cache.example"),
    )


def test_credentials_may_come_from_the_environment_and_the_command_line_has_the_last_word():
    place = ("redis,host=there", "redis,port=6379")
    environ = {"TRITONCACHE_REDIS_USERNAME": "me", "TRITONCACHE_REDIS_PASSWORD": "secret"}
    read = cache_of(*place, **environ)
    assert (read.user, read.password) == ("me", "secret")
    read = cache_of(*place, "redis,user=you", **environ)
    assert (read.user, read.password) == ("you", "secret")


def test_a_password_is_not_shown():
    cache = cache_of("redis,host=there", "redis,port=6379", "redis,password=hush")
    assert "hush" not in repr(cache)
    assert dict(cache.options()) == {"response_cache": "redis://there:6379/0"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("local,size=1", "redis,host=x"),
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        (("memcached,host=x",), "unknown cache 'memcached'"),
        (("local,sise=1",), "unknown --cache-config setting 'sise' of cache 'local'"),
        (("redis,hots=x",), "unknown --cache-config setting 'hots' of cache 'redis'"),
        (("local,size=1", "local,ttl=5"), "unknown --cache-config setting 'ttl' of cache 'local'"),
        (("local,size=0",), "out of bound"),
        (("local,size=some",), "Invalid option value. Got some"),
        (("redis,host=x",), "needs 'port'"),
        (("redis,port=6379",), "needs 'host'"),
        (("redis,host=x", "redis,port=0"), "takes 1 to 65535. Got 0"),
        (("redis,host=x", "redis,port=1", "redis,db=-1"), "redis,db takes a whole number"),
        (("redis,host=x", "redis,port=1", "redis,pool_size=0"), "from 1 to 1024. Got 0"),
        (("redis,host=x", "redis,port=1", "redis,tls_enabled=maybe"), "takes true or false. Got maybe"),
        (("redis,host=x", "redis,port=1", "redis,cacert=/ca"), "no meaning without TLS"),
        (
            ("redis,host=x", "redis,port=1", "redis,tls_enabled=1", "redis,cert=/c"),
            "'cert' and 'key' go together",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(flags, message):
    with pytest.raises(SettingsError) as refused:
        cache_of(*flags)
    assert message in refused.value.message


def test_a_directory_of_caches_has_no_effect_and_that_is_said():
    settings = Settings.from_argv([REPOSITORY, "--cache-directory=/opt/tritonserver/caches"])
    assert settings.warnings[0].startswith("--cache-directory has no effect")


async def test_tls_files_that_are_not_there_end_the_start():
    tls = RedisTls(cacert="/nowhere/ca.pem")
    with pytest.raises(CacheUnusable, match="TLS files can't be used"):
        open_cache(RedisCache(host="there", port=1, tls=tls), log=Logged())
