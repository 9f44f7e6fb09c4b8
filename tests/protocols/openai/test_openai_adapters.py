"""Adapters are loaded and unloaded over the OpenAI API: fields, models, rights, and the audit log."""

import json

import pytest

from actors.values.callers import Action
from actors.values.generation.adapters import AdapterControl
from actors.values.generation.facts import NoSuchAdapter
from protocols.openai.options import Area
from tests.protocols.openai.scripted import FACTS, Scripted, saying, serving
from tests.protocols.openai.test_openai_app import ask, error_of
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller, ListedGate

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
TONE = {"lora_name": "tone", "lora_path": "a/tone"}
TAKES = FACTS._replace(takes_adapters=True)


class Control(AdapterControl):
    """Keeps what it is asked."""

    def __init__(self):
        self.loaded = []
        self.unloaded = []

    async def load(self, model, name, path, *, in_place):
        self.loaded.append((model, name, path, in_place))

    def unload(self, model, name):
        if name == "none":
            raise NoSuchAdapter("The lora adapter 'none' cannot be found.")
        self.unloaded.append((model, name))


@pytest.fixture
def control():
    return Control()


def opened(control, *names, takes=True, **options):
    served = serving(
        *(Scripted(saying("a"), name) for name in names or ("tiny",)),
        adapters=control,
        **{"explicit": True, **options},
    )

    class Opened:
        async def __aenter__(self):
            found = await served.__aenter__()
            for name in found.languages.by_name if takes else ():
                found.languages.by_name[name] = TAKES
            return found

        async def __aexit__(self, *raised):
            return await served.__aexit__(*raised)

    return Opened()


async def test_adapters_are_loaded_and_unloaded(control):
    auditor = KeptAuditor()
    async with opened(control, auditor=auditor) as served:
        status, fields, body = await ask(served, LOAD, TONE)
        assert (status, body) == (200, b"Success: LoRA adapter 'tone' added successfully.")
        assert fields["Content-Type"] == "text/plain; charset=utf-8"
        status, fields, _ = await ask(served, LOAD, {**TONE, "load_inplace": True, "foo": 1})
        assert (status, fields["x-tritium-ignored-fields"]) == (200, "foo")
        status, _, body = await ask(served, UNLOAD, {"lora_name": "tone", "lora_int_id": 7})
        assert (status, body) == (200, b"Success: LoRA adapter 'tone' removed successfully.")
        answer = await ask(served, UNLOAD, {"lora_name": "none"})
        assert (answer[0], error_of(answer)["code"]) == (404, "model_not_found")
    assert control.loaded == [("tiny", "tone", "a/tone", False), ("tiny", "tone", "a/tone", True)]
    assert control.unloaded == [("tiny", "tone")]
    assert [each.facts for each in auditor.changes] == [
        {"adapter": "tone", "path": "a/tone"},
        {"adapter": "tone", "path": "a/tone", "in_place": True},
        {"adapter": "tone"},
        {"adapter": "none"},
    ]
    assert [each[:3] for each in auditor.told[-2:]] == [
        ("asked", "model_unload", "tiny"),
        ("NoSuchAdapter", "model_unload", "tiny"),
    ]


@pytest.mark.parametrize(
    ("path", "document", "told"),
    [
        (LOAD, {"lora_name": "tone"}, "Both 'lora_name' and 'lora_path' must be provided."),
        (LOAD, {"lora_path": "a"}, "Both 'lora_name' and 'lora_path' must be provided."),
        (LOAD, {}, "Both 'lora_name' and 'lora_path' must be provided."),
        (LOAD, b"", "Both 'lora_name' and 'lora_path' must be provided."),
        (LOAD, b"[]", "the body has to be a JSON object, not an array of 0"),
        (LOAD, {**TONE, "lora_name": 7}, "Invalid value for 'lora_name'"),
        (LOAD, {**TONE, "lora_name": "n" * 257}, "Invalid value for 'lora_name'"),
        (LOAD, {**TONE, "load_inplace": "yes"}, "Invalid value for 'load_inplace'"),
        (LOAD, {**TONE, "is_3d_lora_weight": True}, "'is_3d_lora_weight' is not supported"),
        (LOAD, {**TONE, "lora_name": "tiny"}, "The lora adapter 'tiny' conflicts with a served base model."),
        (LOAD, {**TONE, "model": "none"}, "Unknown model: none"),
        (UNLOAD, {}, "'lora_name' needs to be provided to unload a LoRA adapter."),
    ],
)
async def test_what_is_wrong_is_told(control, path, document, told):
    async with opened(control) as served:
        answer = await ask(served, path, document)
    assert answer[0] in {400, 404, 501}
    assert error_of(answer)["message"].startswith(told)
    assert not control.loaded


async def test_models_are_changed_under_explicit_control_only(control):
    async with opened(control, explicit=False) as served:
        for path in (LOAD, UNLOAD):
            answer = await ask(served, path, TONE)
            assert (answer[0], "--model-control-mode=explicit" in error_of(answer)["message"]) == (400, True)
    assert not control.loaded


async def test_a_server_without_language_models_has_no_such_path():
    async with serving(explicit=True) as served:
        assert (await ask(served, LOAD, TONE))[0] == 404


async def test_the_model_is_named_where_there_are_several(control):
    async with opened(control, "tiny", "other") as served:
        answer = await ask(served, LOAD, TONE)
        assert error_of(answer)["message"] == "'model' is missing: tiny, other serve LoRA adapters"
        assert (await ask(served, LOAD, {**TONE, "model": "other"}))[0] == 200
        served.languages.by_name["other"] = FACTS
        assert (await ask(served, LOAD, TONE))[0] == 200
    assert [each[0] for each in control.loaded] == ["other", "tiny"]
    async with opened(control, takes=False) as served:
        answer = await ask(served, UNLOAD, {"lora_name": "tone"})
        assert error_of(answer)["message"].startswith("no model here serves LoRA adapters")


async def test_a_name_means_one_thing(control):
    """With a separator, adapters of two models may have the same name."""
    french = {"lora_name": "french", "lora_path": "a"}
    async with opened(control, "tiny", "other") as served:
        answer = await ask(served, LOAD, {**french, "model": "other"})
        assert "conflicts with one of model 'tiny'" in error_of(answer)["message"]
        assert (await ask(served, LOAD, {**french, "model": "tiny"}))[0] == 200
    async with opened(control, "tiny", "other", separator=":") as served:
        assert (await ask(served, LOAD, {**french, "model": "other"}))[0] == 200


async def test_rights_are_those_of_loading_the_model(control):
    good = KnownCaller("ann", {(Action.MODEL_REPOSITORY, ""), (Action.MODEL_REPOSITORY, "tiny")})
    other = KnownCaller("bob", {(Action.MODEL_REPOSITORY, ""), (Action.MODEL_REPOSITORY, "other")})
    auditor = KeptAuditor()
    gate = ListedGate({b"Bearer ann": good, b"Bearer bob": other})
    headers = {name: f"Authorization: Bearer {name}\r\n" for name in ("ann", "bob", "eve")}
    async with opened(control, gate=gate, auditor=auditor) as served:
        assert (await ask(served, LOAD, TONE, headers=headers["ann"]))[0] == 200
        answer = await ask(served, LOAD, TONE, headers=headers["bob"])
        assert error_of(answer)["message"].startswith("no model here serves")  # that this caller may load
        answer = await ask(served, LOAD, {**TONE, "model": "tiny"}, headers=headers["bob"])
        assert (answer[0], auditor.told[-1][0]) == (403, "PermissionDenied")
        assert (await ask(served, UNLOAD, TONE, headers=headers["eve"]))[0] == 401
    assert len(control.loaded) == 1
    restricted = {Area.REPOSITORY: ("x-key", "secret")}
    async with opened(control, restricted=restricted) as served:
        assert (await ask(served, LOAD, TONE))[0] == 401
        assert (await ask(served, LOAD, TONE, headers="x-key: secret\r\n"))[0] == 200
        assert json.loads((await ask(served, "/v1/models", method="GET", headers="x-key: secret\r\n"))[2])
