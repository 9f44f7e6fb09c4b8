"""All that reads bytes from strangers: over gRPC, and from workers."""

from collections.abc import Mapping
from typing import Final

from tests.fuzz.campaign import Target
from tests.fuzz.connections import Connections
from tests.fuzz.header_blocks import HeaderBlocks
from tests.fuzz.infer_requests import InferRequests
from tests.fuzz.message_streams import MessageStreams
from tests.fuzz.worker_calls import WorkerCallsTarget
from tests.fuzz.worker_frames import WorkerFrames

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        *(Connections(), HeaderBlocks(), MessageStreams(), InferRequests()),
        *(WorkerFrames(), WorkerCallsTarget()),
    )
}
