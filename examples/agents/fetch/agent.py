"""Fetch files of a model that are kept elsewhere, such as large weights.

Each parameter maps a path in the model's folder to `<sha256> <url>`:

    parameters { key: "1/model.onnx" value: "9f86d081… https://models.example.org/resnet.onnx" }
"""

import hashlib
import shutil
import urllib.request

from tritium import agents

TIMEOUT = 60.0  # seconds without a byte


class Agent(agents.Agent):
    def load(self):
        folder = self.model.acquire()
        shutil.copytree(self.model.location, folder, dirs_exist_ok=True)
        for path, said in self.model.parameters.items():
            digest, _, url = said.partition(" ")
            target = (folder / path).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise ValueError(f"'{path}' lies outside of the model's folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            print(f"fetching {path}", flush=True)
            found = fetch(url, target)
            if found != digest.lower():
                raise ValueError(f"{url} has sha256 {found}, and {digest} is expected")
        self.model.relocate(folder)


def fetch(url, target):
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"'{url}' is no http or https address")
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, target.open("wb") as file:
        while piece := answer.read(1 << 20):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()
