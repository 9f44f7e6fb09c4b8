"""Ask the model `scaled` of the C backend: `python client.py [HOST:PORT]`."""

import json
import sys
from urllib.request import urlopen

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
NUMBERS = [1, 2, 4]

tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, len(NUMBERS)], "data": NUMBERS}
with urlopen(f"http://{ADDRESS}/v2/models/scaled/infer", json.dumps({"inputs": [tensor]}).encode()) as answer:
    print(json.load(answer)["outputs"][0]["data"])
