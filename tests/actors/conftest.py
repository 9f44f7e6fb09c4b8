"""What tests of several actors begin with."""

import pytest

from tests.support.catalog_doubles import World


@pytest.fixture
async def begin(nursery):
    """Start a catalog over models made of values; the test ends it."""

    async def begin(*found, wait=True, **options):
        world = World(*found, **options)
        await world.begin(nursery, wait=wait)
        return world

    yield begin
    nursery.cancel_scope.cancel()
