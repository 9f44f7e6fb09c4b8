"""Reads manifests into the models of KServe's own package, and prints what does not fit.

    PYTHON tests/support/kserve_models.py FILE ...

Run by path, on a Python that has `kserve` (`tests.support.environments.KSERVE`). KServe's own reader passes
over unknown fields, so this one walks the fields that the models declare.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import kserve.models
import kubernetes.client.models
import yaml

VERSIONS = {"v1alpha1": "V1alpha1", "v1beta1": "V1beta1"}
PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "object": (object,),
    "datetime": (str,),
    "ResourceQuantity": (str, int),
    "V1beta1MetricQuantity": (str, int),
    "IntstrIntOrString": (str, int),
}


def main() -> int:
    """Print the mistakes of the files, and return the exit status."""
    mistakes = []
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            for document in yaml.safe_load_all(file):
                version = VERSIONS[document["apiVersion"].removeprefix("serving.kserve.io/")]
                found = _mistakes(document, version + document["kind"], document["kind"])
                mistakes += [f"{name}: {each}" for each in found]
    print("\n".join(mistakes) or f"{len(sys.argv) - 1} files fit")
    return 1 if mistakes else 0


def _mistakes(value: Any, kind: str, place: str) -> Iterator[str]:
    if listed := re.fullmatch(r"[lL]ist\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{place} is {value!r}, and no list"
            return
        for at, each in enumerate(value):
            yield from _mistakes(each, listed[1], f"{place}[{at}]")
    elif mapped := re.fullmatch(r"[dD]ict[(\[]str, (.+)[)\]]", kind):
        if not isinstance(value, dict):
            yield f"{place} is {value!r}, and no mapping"
            return
        for key, each in value.items():
            yield from _mistakes(each, mapped[1], f"{place}.{key}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]) or (kind == "int" and isinstance(value, bool)):
            yield f"{place} is {value!r}, and no {kind}"
    else:
        yield from _mistakes_of_model(value, kind, place)


def _mistakes_of_model(value: Any, kind: str, place: str) -> Iterator[str]:
    # Kubernetes' own go by their Go packages there, such as K8sIoApiAutoscalingV2MetricSpec.
    short = re.sub("^K8sIoApi[A-Z][a-z]+", "", kind)
    model = getattr(kserve.models, kind, None) or getattr(kubernetes.client.models, short)
    if not isinstance(value, dict):
        yield f"{place} is {value!r}, and no {kind}"
        return
    names = {key: name for name, key in model.attribute_map.items()}
    for key, each in value.items():
        if key not in names:
            yield f"{place} has no field {key}"
        else:
            yield from _mistakes(each, model.openapi_types[names[key]], f"{place}.{key}")


if __name__ == "__main__":
    sys.exit(main())
