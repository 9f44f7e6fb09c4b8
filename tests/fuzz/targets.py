"""All that reads bytes from strangers: over HTTP and gRPC, from workers, and in files that let clients in."""

from collections.abc import Mapping
from typing import Final

from tests.fuzz.auth_files import AuthFiles
from tests.fuzz.campaign import Target
from tests.fuzz.connections import Connections
from tests.fuzz.credentials import Credentials
from tests.fuzz.header_blocks import HeaderBlocks
from tests.fuzz.hpack_blocks import HpackBlocks
from tests.fuzz.infer_requests import InferRequests
from tests.fuzz.message_streams import MessageStreams
from tests.fuzz.openai_bodies import OpenAiBodies
from tests.fuzz.page_requests import PageRequests
from tests.fuzz.regions import Regions
from tests.fuzz.request_heads import RequestHeads
from tests.fuzz.rule_tables import RuleTables
from tests.fuzz.signed_files import SignedFiles
from tests.fuzz.text_reports import TextReports
from tests.fuzz.tool_calls import ToolCalls
from tests.fuzz.worker_calls import WorkerCallsTarget
from tests.fuzz.worker_frames import WorkerFrames

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        *(Connections(), HeaderBlocks(), HpackBlocks(), MessageStreams(), InferRequests()),
        *(WorkerFrames(), WorkerCallsTarget()),
        *(OpenAiBodies(), TextReports(), ToolCalls()),
        *(RequestHeads(), PageRequests(), Credentials()),
        *(AuthFiles(), RuleTables(), SignedFiles(), Regions()),
    )
}
