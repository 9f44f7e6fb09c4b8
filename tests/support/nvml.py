"""NVIDIA's management library, played: the part of `pynvml` that is used.

`FAKE_NVML` is a JSON file with the GPUs, for servers on pretended GPUs (`serving_with_gpus`): of each its
`uuid`, and `total`, `used`, `processes` and `parts`, if it is divided.
"""

import json
from pathlib import Path
from types import SimpleNamespace

UUIDS = ("GPU-aaaa-1", "GPU-bbbb-2")


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class PlayedNvml:
    """By default two GPUs. The second can't tell its power or its energy.

    `gpus` are their UUIDs, or all that is told of each. A handle is what is told of a GPU, or of a part.
    """

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported

    def __init__(self, gpus=UUIDS, failing=()):
        told = [{"uuid": each} if isinstance(each, str) else each for each in gpus]
        self.gpus = [{**each, "number": number} for number, each in enumerate(told)]
        self.failing = dict(failing)  # by function: why
        self.energy = 5_000_000
        self.open = 0

    def _try(self, name):
        if name in self.failing:
            raise NVMLError(self.failing[name])

    def nvmlInit(self):
        self._try("nvmlInit")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        self._try("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle):
        return handle["uuid"].encode()

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._try("nvmlDeviceGetUtilizationRates")
        if "number" not in handle:
            raise NVMLError_NotSupported("Not Supported")
        return SimpleNamespace(gpu=25 * (handle["number"] + 1), memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._try("nvmlDeviceGetMemoryInfo")
        total, used = handle.get("total", 1000), handle.get("used", 100 + handle.get("number", 0))
        return SimpleNamespace(total=total, used=used, free=total - used)

    def nvmlDeviceGetPowerUsage(self, handle):
        self._has(handle)
        return 71_500

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        self._has(handle)
        return 300_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        self._has(handle)
        return self.energy

    def _has(self, handle):
        if handle.get("number", 1):
            raise NVMLError_NotSupported("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in handle.get("processes", ())]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle):
        raise NVMLError_NotSupported("Not Supported")

    # -- parts of GPUs

    def nvmlDeviceGetMigMode(self, handle):
        if "parts" not in handle:
            raise NVMLError_NotSupported("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(handle["parts"]):
            raise NVMLError("Not Found")
        return {"place": index, **handle["parts"][index]}

    def nvmlDeviceGetGpuInstanceId(self, handle):
        return handle["place"] + 1

    def nvmlDeviceGetComputeInstanceId(self, handle):
        return 0


def loaded_from(environ):
    """Return what imports the library that FAKE_NVML describes; it is none without that."""

    def load(name):
        if "FAKE_NVML" not in environ:
            raise ImportError(name)
        return PlayedNvml(json.loads(Path(environ["FAKE_NVML"]).read_text()))

    return load
