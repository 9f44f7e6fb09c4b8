"""What tests of several actors begin with."""

from contextlib import ExitStack

import pytest

from tests.actors.serving.test_live_worker import Connection
from tests.support.catalog_doubles import EXPLICIT, World


@pytest.fixture
async def begin(nursery):
    """Start a catalog over models made of values; the test ends it."""

    async def begin(*found, wait=True, **options):
        world = World(*found, **options)
        await world.begin(nursery, wait=wait)
        return world

    yield begin
    nursery.cancel_scope.cancel()


@pytest.fixture
async def loaded(begin):
    """Load the last of some models on request; return the world, and the state of its one version."""

    async def loaded(*found, config=None, **options):
        world = await begin(*found, **EXPLICIT, **options)
        name = found[-1].key.name
        await world.catalog.load(name, {} if config is None else {"config": config})
        return world, max(world.serving(name).items())[1]

    return loaded


@pytest.fixture
async def connect():
    """Make live workers whose far ends the test plays."""
    with ExitStack() as made:

        def connected(**changes):
            connection = Connection(**changes)
            made.callback(connection.close)
            return connection

        yield connected


@pytest.fixture
async def connection(connect):
    return connect()


@pytest.fixture
async def batch(connection):
    """A request that was dispatched over the connection."""
    return connection.dispatch(connection.request())
