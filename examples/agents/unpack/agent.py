"""Unpack a model that lies in its folder as one archive, such as model.tar.gz: parameter `archive`."""

import shutil
import tarfile
import zipfile
from pathlib import Path

from tritium import agents

LARGEST = 16 * 1024**3  # bytes, unpacked


class Agent(agents.Agent):
    def load(self):
        archive = inside(self.model.location, self.model.parameters["archive"])
        folder = self.model.acquire()
        config = self.model.location / "config.pbtxt"
        if config.is_file():
            shutil.copy(config, folder)
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as members:
                check_size(sum(each.file_size for each in members.infolist()))
                members.extractall(folder)
        else:
            with tarfile.open(archive) as members:
                check_size(sum(each.size for each in members))
                # `data` refuses links out of the folder, devices, and absolute paths.
                members.extractall(folder, filter="data")
        self.model.relocate(folder)


def check_size(nbytes):
    if nbytes > LARGEST:
        raise ValueError(f"the archive holds {nbytes} bytes, and at most {LARGEST} are unpacked")


def inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"'{name}' lies outside of the model's folder")
    return path
