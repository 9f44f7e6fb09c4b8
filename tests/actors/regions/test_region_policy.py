import pytest

from actors.regions import policy
from actors.regions.policy import RegionLimits
from actors.values.errors import InvalidArgument, Unavailable

MOST = 2**64 - 1


@pytest.mark.parametrize(
    ("key", "name"), [("k", "k"), ("/k", "k"), ("///k", "k"), ("k/", "k/"), ("/a/b", "a/b")]
)
def test_leading_slashes_of_a_key_do_not_count(key, name):
    assert policy.object_name("R", key) == name


@pytest.mark.parametrize(
    "key", ["", "/", "//", "/triton_python_backend_shm_region_", "triton_python_backend_shm_region_7"]
)
def test_some_keys_are_no_names(key):
    with pytest.raises(InvalidArgument):
        policy.object_name("R", key)


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        ("k", True),
        ("ü" * 127, True),
        ("ü" * 128, False),
        ("\udcff", False),  # a byte that is no UTF-8, as file names may have it
        ("a/b", False),
        ("k/", False),
        ("a\0", False),
        (".", False),
        ("..", False),
        ("...", True),
    ],
)
def test_an_object_lies_in_its_folder_itself(name, possible):
    assert policy.can_be_opened(name) is possible


@pytest.mark.parametrize(
    ("offset", "byte_size", "text"),
    [
        (0, 8192, ""),
        (4096, 4096, ""),
        (0, 8193, "invalid args"),
        (8192, 1, "invalid args"),
        (MOST, MOST, "invalid args"),
        (1, 1, "unable to process address spaceInvalid argument"),
        (4096, 0, "unable to process address spaceInvalid argument"),
    ],
)
def test_a_region_is_what_could_be_mapped(offset, byte_size, text):
    def check():
        policy.check_extent("R", offset, byte_size, object_size=8192, page=4096)

    if not text:
        check()
        return
    with pytest.raises(InvalidArgument) as caught:
        check()
    assert caught.value.message == f"failed to register shared memory region 'R': {text}"


@pytest.mark.parametrize(
    ("count", "held", "flag"), [(1, 0, ""), (2, 0, "regions"), (1, 93, "bytes"), (1, 92, "")]
)
def test_regions_and_their_bytes_are_limited(count, held, flag):
    limits = RegionLimits(regions=2, nbytes=100)
    if not flag:
        policy.check_room("R", 8, count=count, held=held, limits=limits)
        return
    with pytest.raises(Unavailable, match=f"--client-shm-{flag}$"):
        policy.check_room("R", 8, count=count, held=held, limits=limits)


@pytest.mark.parametrize(
    ("offset", "nbytes", "text"),
    [
        (0, 64, ""),
        (63, 1, ""),
        (0, 0, ""),
        (64, 0, "Invalid offset for shared memory region: 'R'"),
        (MOST, MOST, "Invalid offset for shared memory region: 'R'"),
        (63, 2, "Invalid offset + byte size for shared memory region: 'R'"),
        (
            1,
            MOST,
            f"Integer overflow detected: byte_size ({MOST}) + offset (1) exceeds maximum value ({MOST}) for "
            "region 'R'",
        ),
    ],
)
def test_a_tensor_lies_within_its_region(offset, nbytes, text):
    if not text:
        policy.check_place("R", 64, offset=offset, nbytes=nbytes)
        return
    with pytest.raises(InvalidArgument) as caught:
        policy.check_place("R", 64, offset=offset, nbytes=nbytes)
    assert caught.value.message == text


def test_errors_name_the_region_or_its_key():
    assert policy.not_opened("/k").message == "Unable to open shared memory region: '/k'"
    assert policy.not_memory("/k").message == "Invalid shared memory region: '/k'"
    assert policy.taken("R").message == "shared memory region 'R' already in manager"
    assert policy.unknown("R", "cuda").message == "Unable to find cuda shared memory region: 'R'"
    assert policy.other_kind("R", asked_for_cuda=True).message == (
        "The region named 'R' is registered as system shared memory, not CUDA shared memory"
    )
    assert policy.other_kind("R", asked_for_cuda=False).message == (
        "The region named 'R' is registered as CUDA shared memory, not system shared memory"
    )


def test_names_and_keys_are_kept_only_if_they_are_short():
    policy.check_names("r" * 1024, "k" * 1024)
    for given, what in ((("r" * 1025,), "the name of a shared"), (("r", "k" * 1025), "the key of a region")):
        with pytest.raises(InvalidArgument, match=f"{what}.* has 1025 characters, and may have 1024 at most"):
            policy.check_names(*given)


def test_what_a_request_reads_from_regions_is_limited():
    policy.check_inputs("", 64, RegionLimits(inputs=64))
    with pytest.raises(InvalidArgument, match="id: the inputs in shared memory have 65 bytes"):
        policy.check_inputs("id: ", 65, RegionLimits(inputs=64))
