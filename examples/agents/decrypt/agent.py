"""Decrypt the files of a model that end in `.enc`, with a Fernet key: parameter `key_file` is its path.

`pip install cryptography`. Make a key and encrypt a file:

    python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())" > model.key
    python -c "import sys; from cryptography.fernet import Fernet; f = Fernet(open('model.key').read());
    open(sys.argv[1] + '.enc', 'wb').write(f.encrypt(open(sys.argv[1], 'rb').read()))" model.onnx
"""

import shutil
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from tritium import agents


class Agent(agents.Agent):
    def load(self):
        key = Fernet(Path(self.model.parameters["key_file"]).read_bytes().strip())
        folder = self.model.acquire()
        for path in sorted(self.model.location.rglob("*")):
            target = folder / path.relative_to(self.model.location)
            if path.is_dir():
                target.mkdir(exist_ok=True)
            elif path.suffix == ".enc":
                try:
                    target.with_suffix("").write_bytes(key.decrypt(path.read_bytes()))
                except InvalidToken:
                    raise ValueError(f"{path.name} was not encrypted with this key") from None
            else:
                shutil.copy(path, target)
        self.model.relocate(folder)
