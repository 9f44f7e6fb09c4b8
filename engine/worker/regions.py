"""Clients' regions in a worker: inputs are read before an execution, outputs written after it.

A region is read and written through a descriptor that came with the batch, and that is closed with it. It is
never mapped: the client may shrink it at any time. Whatever goes wrong with a region is the trouble of the
request that named it, and of no other.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.regions import cut_off_at, too_short, too_small
from actors.values.tensors import pack_bytes
from actors.wire.batch_frames import READ_FAILED, WRITE_FAILED, Answer
from actors.wire.region_spans import DIRECT_FROM, read_spans, write_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.values.tensors import Array
    from actors.wire.batch_frames import Execute
    from actors.wire.region_spans import ReadSpan, WriteSpan
    from engine.worker.devices.arrays import DeviceArray


class BatchRegions:
    """What of one batch lies in clients' regions. `close` it once the batch is over.

    `failed` takes the answers of requests that a region has failed, by their places in the batch.
    """

    def __init__(self, job: Execute, failed: dict[int, Answer]) -> None:
        """Take over the descriptors of `job`."""
        self.failed = failed
        self._reads: list[tuple[int, ReadSpan]] = []
        self._writes: list[Mapping[str, WriteSpan]] = []
        self._descriptors: Sequence[int] = job.descriptors
        job.descriptors = ()
        for index, metadata in enumerate(job.metadata or ()):
            self._reads += [(index, span) for span in read_spans(metadata)]
            self._writes.append(write_spans(metadata))

    def read_into(self, view: memoryview) -> None:
        """Read all inputs to their places in `view`. What is not there is zeros."""
        for index, span in self._reads:
            piece = view[span.offset : span.offset + span.nbytes]
            done, why = 0, ""
            try:
                descriptor = self._descriptor(span.number)
                done = _read(descriptor, piece, span.at)
                if done < span.nbytes:
                    ends = cut_off_at(descriptor, span.at + done)
                    needed = span.at + span.nbytes
                    why = too_short(span.region, f"input '{span.name}'", ends=ends, needed=needed)
            except OSError as error:
                what = f"input '{span.name}' can't be read from shared memory region '{span.region}'"
                why = f"{what}: {error.strerror}"
            if why:
                self.failed.setdefault(index, _failed(ErrorCode.INVALID_ARG, why, READ_FAILED))
                piece[done:] = bytes(span.nbytes - done)

    @property
    def writes(self) -> bool:
        """Whether an output of any request belongs into a region."""
        return any(self._writes)

    def write(self, index: int, name: str, datatype: DataType, array: Array | DeviceArray) -> int | None:
        """Write an output of request `index` to its place; return its bytes.

        Returns None, and has done nothing, where it belongs into the segment. If it can't be written, the
        request has `failed`.
        """
        place = self._writes[index].get(name)
        if place is None:
            return None
        data = bytes_of(datatype, array)
        nbytes = len(data)
        if nbytes <= DIRECT_FROM:
            return None
        try:
            failure = self._store(place, name, data)
        except OSError as error:  # out of memory, say
            why = (
                f"output '{name}' can't be written to shared memory region '{place.region}': {error.strerror}"
            )
            failure = _failed(ErrorCode.INTERNAL, why, WRITE_FAILED)
        if failure is not None:
            self.failed.setdefault(index, failure)
        return nbytes

    def _store(self, place: WriteSpan, name: str, data: memoryview) -> Answer | None:
        """Write `data`, or return the answer that says why not."""
        if len(data) > place.nbytes:
            message = too_small(name, place.nbytes, len(data))
            return _failed(ErrorCode.INTERNAL, message, WRITE_FAILED)
        descriptor, end = self._descriptor(place.number), place.at + len(data)
        # Otherwise, writing would make a region longer that its client has shrunk.
        size = os.fstat(descriptor).st_size
        if size < end:
            message = too_short(place.region, f"output '{name}'", ends=size, needed=end)
            return _failed(ErrorCode.INVALID_ARG, message, WRITE_FAILED)
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], place.at + done)
        return None

    def _descriptor(self, number: int) -> int:
        """Return the descriptor of a region. Raises OSError if the process had no room for it."""
        if number < len(self._descriptors):
            return self._descriptors[number]
        raise OSError(errno.EMFILE, "the worker process has too many files open")

    def close(self) -> None:
        """Close all descriptors; idempotent."""
        descriptors, self._descriptors = self._descriptors, ()
        close_all(descriptors)

    def __del__(self) -> None:
        """Close them, if an exception has ended the batch."""
        self.close()


def _failed(code: ErrorCode, message: str, trouble: int) -> Answer:
    return Answer(code=code, message=message, trouble=trouble)


def close_all(descriptors: Sequence[int]) -> None:
    """Close the descriptors of a batch that is not executed."""
    for descriptor in descriptors:
        os.close(descriptor)


def _read(descriptor: int, piece: memoryview, at: int) -> int:
    done = 0
    while done < len(piece):
        count = os.preadv(descriptor, [piece[done:]], at + done)
        if not count:
            break
        done += count
    return done


def bytes_of(datatype: DataType, array: Array | DeviceArray) -> memoryview:
    """Return an output as it travels, without a copy where that is how it lies in memory."""
    if not isinstance(array, np.ndarray):
        array = array.to_host()
    if datatype is DataType.BYTES:
        return memoryview(pack_bytes(array.ravel().tolist()))
    return np.ascontiguousarray(array, dtype=datatype.numpy).reshape(-1).view(np.uint8).data
