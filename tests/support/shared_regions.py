"""Regions of shared memory that a test makes and holds, as a client does."""

import itertools
import os

import numpy as np

from actors.values.datatypes import DataType
from actors.values.regions import Region, RegionSlice, RegionTensor

_numbers = itertools.count()


class ClientRegion:
    """One object of shared memory, with a region over all of it. Close it when the test is over."""

    def __init__(self, nbytes, *, offset=0):
        name = f"region{next(_numbers)}"
        self.fileno = os.memfd_create(name)
        os.truncate(self.fileno, nbytes)
        self.region = Region(name, f"/{name}", offset, nbytes - offset, self.fileno)

    def put(self, array, at=0):
        """Write an array; return its bytes as a slice."""
        data = np.ascontiguousarray(array).tobytes()
        os.pwrite(self.fileno, data, at)
        return RegionSlice(self.region, at, len(data))

    def slice(self, at, nbytes):
        return RegionSlice(self.region, at, nbytes)

    def array(self, shape, at=0, dtype=np.float32):
        """What lies there now."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(os.pread(self.fileno, nbytes, at), dtype).reshape(shape)

    def shrink(self, nbytes):
        os.truncate(self.fileno, nbytes)

    @property
    def size(self):
        return os.fstat(self.fileno).st_size

    def close(self):
        os.close(self.fileno)
        self.region.fileno = -1


def input_in(place, shape, *, name="INPUT", datatype=DataType.FP32):
    """An input that lies in a region."""
    return RegionTensor(name, datatype, shape, place)
