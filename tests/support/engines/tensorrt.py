"""A stand-in for the package `tensorrt`: what Tritium uses of it, over the stand-in for the CUDA driver.

A plan is its 28 bytes of header and JSON: the tensors, the profiles, and what is computed. It behaves as the
real one does where Tritium could go wrong. Nothing is computed before the stream is waited for. Shapes
outside of the active profile, missing addresses and addresses that are not on the device are refused with
False and a logged error. A plan of another version is None. The calls were compared with the bindings of
TensorRT-RTX 1.7 and of the lean runtime 11.4.

It is loaded as a module of that name from this folder, in workers too: so it imports nothing of ours.
"""

import ctypes
import enum
import json
import math
import os

import numpy as np

__version__ = "10.13.0.35"

HEADER = b"ftrt" + bytes(20) + bytes((10, 13, 0, 35))

_HostFunc = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DataType(enum.Enum):
    """Element types."""

    FLOAT = "f4"
    HALF = "f2"
    INT8 = "i1"
    UINT8 = "u1"
    INT32 = "i4"
    INT64 = "i8"
    BOOL = "?"
    BF16 = "u2"
    FP8 = "V1"


class TensorIOMode(enum.Enum):
    """Sides."""

    NONE, INPUT, OUTPUT = range(3)


class TensorLocation(enum.Enum):
    """Where a tensor lies."""

    DEVICE, HOST = range(2)


class TensorFormat(enum.Enum):
    """Layouts."""

    LINEAR, HWC8 = range(2)


class ExecutionContextAllocationStrategy(enum.Enum):
    """When a context's memory is allocated."""

    STATIC, ON_PROFILE_CHANGE, USER_MANAGED = range(3)


class ILogger:
    """Base of loggers."""

    class Severity(enum.Enum):
        """Levels."""

        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self):
        self.made = True


class IOutputAllocator:
    """Base of what gives memory for outputs of unknown size."""

    def __init__(self):
        self.made = True


def init_libnvinfer_plugins(logger, namespace):
    """There are none."""
    del logger, namespace
    return True


class Runtime:
    """Makes engines of plans."""

    num_DLA_cores = 0
    engine_host_code_allowed = False

    def __init__(self, logger):
        assert logger.made, "the base class of a logger must be constructed"
        self.logger = logger

    def deserialize_cuda_engine(self, plan):
        """Return the engine, or None and an error in the log."""
        severity = ILogger.Severity
        if plan[24:28] != HEADER[24:28] and not self.engine_host_code_allowed:
            self.logger.log(
                severity.ERROR, "the engine plan file is not compatible with this version of TensorRT"
            )
            return None
        try:
            said = json.loads(plan[28:])
        except ValueError:
            self.logger.log(severity.ERROR, "Serialization assertion plan->header.size == blobSize failed.")
            return None
        self.logger.log(severity.WARNING, "Using an engine plan file across different models of devices")
        return ICudaEngine(said, self.logger)


class ICudaEngine:
    """An engine. `said` is the plan's JSON."""

    def __init__(self, said, logger):
        self.said, self.logger = said, logger
        self.tensors = {each["name"]: each for each in said["tensors"]}
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = said.get("profiles", 1)
        self.contexts = []

    def get_tensor_name(self, at):
        """By place."""
        return list(self.tensors)[at]

    def get_tensor_mode(self, name):
        """Input or output."""
        return TensorIOMode.INPUT if "profiles" in self.tensors[name] else TensorIOMode.OUTPUT

    def get_tensor_shape(self, name):
        """With -1 for what executions say."""
        return tuple(self.tensors[name]["shape"])

    def get_tensor_dtype(self, name):
        """Its elements."""
        return DataType[self.tensors[name].get("type", "FLOAT")]

    def get_tensor_format(self, name):
        """Its layout."""
        return TensorFormat[self.tensors[name].get("format", "LINEAR")]

    def get_tensor_components_per_element(self, name):
        """Of a vectorised layout."""
        return 8 if self.tensors[name].get("format") == "HWC8" else 1

    def get_tensor_vectorized_dim(self, name):
        """The dimension that is vectorised."""
        return 1 if self.tensors[name].get("format") == "HWC8" else -1

    def get_tensor_location(self, name):
        """Host for shape tensors."""
        return TensorLocation.HOST if self.is_shape_inference_io(name) else TensorLocation.DEVICE

    def is_shape_inference_io(self, name):
        """Whether it is a shape tensor."""
        return self.tensors[name].get("is_shape", False)

    def get_tensor_profile_shape(self, name, profile):
        """Smallest, best, largest."""
        return [tuple(each) for each in self.tensors[name]["profiles"][profile]]

    def get_tensor_profile_values(self, profile, name):
        """Of a shape tensor."""
        return self.tensors[name].get("values", {}).get(str(profile), [])

    def create_execution_context(self, strategy=ExecutionContextAllocationStrategy.STATIC):
        """Return a context."""
        context = IExecutionContext(self, strategy)
        self.contexts.append(context)
        return context


class IExecutionContext:
    """One execution at a time."""

    def __init__(self, engine, strategy):
        self.engine, self.strategy = engine, strategy
        self.profile = 0
        self.shapes, self.addresses, self.allocators = {}, {}, {}
        self.enqueued = []  # what the driver is to call has to live until it has

    def _refuse(self, message):
        self.engine.logger.log(ILogger.Severity.ERROR, message)
        return False

    def set_optimization_profile_async(self, profile, stream):
        """Change the profile; inputs' shapes are to be set again."""
        assert stream, "the default stream is slow"
        self.profile = profile
        self.shapes.clear()
        return True

    def set_input_shape(self, name, shape):
        """Refuses what the profile does not have."""
        low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
        fits = len(shape) == len(low) and all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))
        if not fits:
            return self._refuse(f"IExecutionContext::setInputShape: {name} {shape} is out of profile")
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name, address):
        """Device memory for most, host memory for shape tensors."""
        self.addresses[name] = address
        return True

    def set_output_allocator(self, name, allocator):
        """For an output of unknown size."""
        assert allocator.made, "the base class of an allocator must be constructed"
        self.allocators[name] = allocator
        return True

    def _values(self, name):
        """Return a shape tensor's elements, as they are in the host's memory now."""
        return _view(self.addresses[name], self.engine.get_tensor_dtype(name), self.shapes[name]).copy()

    def infer_shapes(self):
        """Return inputs that lack a shape, or a shape tensor's address."""
        inputs = [name for name in self.engine.tensors if "profiles" in self.engine.tensors[name]]
        return [
            name
            for name in inputs
            if name not in self.shapes
            or (self.engine.is_shape_inference_io(name) and name not in self.addresses)
        ]

    def get_tensor_shape(self, name):
        """With -1 where elements decide."""
        if name in self.shapes:
            return self.shapes[name]
        return tuple(_SHAPES[self.engine.said["computes"]](self, name))

    def execute_async_v3(self, stream):
        """Enqueue the computation."""
        for name in self.engine.tensors:
            if name in self.allocators:
                continue
            if not self.addresses.get(name):
                return self._refuse(f"Neither address or allocator is set for tensor {name}")
            if not self.engine.is_shape_inference_io(name) and not _is_on_device(self.addresses[name]):
                return self._refuse(f"address of {name} is not aligned, or no device memory")
        if self.infer_shapes():
            return self._refuse("not all input shapes are set")
        if self.engine.said["computes"] == "fail":
            return self._refuse("Cask convolution execution failed")
        addresses = dict(self.addresses)
        inputs = dict(self.shapes)
        outputs = {
            name: self.get_tensor_shape(name)
            for name in self.engine.tensors
            if name not in inputs and name not in self.allocators
        }

        def work(_):
            given = {
                name: _view(addresses[name], self.engine.get_tensor_dtype(name), shape)
                for name, shape in inputs.items()
            }
            for name, value in _COMPUTES[self.engine.said["computes"]](given).items():
                kind = self.engine.get_tensor_dtype(name)
                if name in self.allocators:
                    allocator = self.allocators[name]
                    address = allocator.reallocate_output_async(name, 0, value.nbytes, 256, stream)
                    allocator.notify_shape(name, value.shape)
                    _view(address, kind, value.shape)[...] = value
                else:
                    _view(addresses[name], kind, outputs[name])[...] = value

        if self.allocators:  # then it waits for the elements that decide
            assert _driver().cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
            work(None)
            return True
        called = _HostFunc(work)
        self.enqueued.append(called)
        status = _driver().cuLaunchHostFunc(ctypes.c_void_p(stream), called, None)
        return status == 0 or self._refuse(f"Cuda Runtime (error {status})")


def _driver():
    """Return the stand-in for the driver that this process has loaded already."""
    return ctypes.CDLL(os.path.join(os.environ["LD_LIBRARY_PATH"].split(":")[0], "libcuda.so.1"))


def _is_on_device(address):
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    found = ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
    return _driver().cuMemGetAddressRange_v2(*found) == 0 and address % 256 == 0


def _view(address, kind, shape):
    dtype = np.dtype(kind.value)
    memory = (ctypes.c_ubyte * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)


def _as_x(context, name):
    del name
    return context.shapes["X"]


# What plans compute, by name, and the shapes of outputs.
_COMPUTES = {
    "double": lambda given: {"Y": given["X"] * 2},
    "sum": lambda given: {"Y": given["X"] + given["Z"]},
    "scalar": lambda given: {"Y": given["X"] + 1},
    "nonzero": lambda given: {"Y": np.flatnonzero(given["X"]).astype("i8")},
    "fill": lambda given: {"Y": np.ones(given["S"].tolist(), "f4"), "T": given["S"] * 2},
    "ragged": lambda given: {"Y": np.add.reduceat(given["X"], given["STARTS"].astype(int))[:, None]},
    "fail": dict,
}
_SHAPES = {
    "double": _as_x,
    "sum": _as_x,
    "scalar": _as_x,
    "fail": _as_x,
    "nonzero": lambda context, name: [-1],
    "fill": lambda context, name: context._values("S").tolist() if name == "Y" else context.shapes["S"],
    "ragged": lambda context, name: [*context.shapes["STARTS"], 1],
}


def plan(computes, *tensors, profiles=1, version=__version__):
    """Return a plan's bytes; the real package has a builder for that."""
    header = HEADER[:24] + bytes(map(int, version.split(".")))
    said = {"computes": computes, "tensors": tensors, "profiles": profiles}
    return header + json.dumps(said).encode()


def tensor(name, shape, *profiles, **options):
    """Return a tensor of a plan; an input has its (smallest, best, largest) shapes in each profile."""
    return {"name": name, "shape": shape, **({"profiles": profiles} if profiles else {}), **options}
