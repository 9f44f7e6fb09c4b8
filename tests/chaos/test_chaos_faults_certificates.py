"""The certificate of a listener changes under load, well and badly."""

import random

import pytest

from chaos.faults import certificates
from chaos.faults.base import NoTarget
from chaos.faults.certificates import FAULTS, LISTENER, served_files, turned_back
from tests.chaos.faults_bench import bare_stage, bench


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.system
async def test_certificates_that_change_cost_no_client_an_answer(tmp_path):
    async with bench(tmp_path, tls=True) as made:
        for fault in FAULTS:
            for seed in (1, 2):  # one tells the server, one leaves it to see
                assert await made.trouble(fault, seed) == ""
        assert len(made.logged("files_reloaded", what=LISTENER)) == 4
        assert len(made.logged("reload_failed", what=LISTENER)) == 2
        assert {each.detail.rpartition(", and ")[2] for each in made.injections} == {
            "the server is told",
            "the server has to see it",
        }
    assert not made.failed()


async def test_without_certificates_there_is_no_target(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "is_missing", lambda package: package == "cryptography")
    assert served_files(tmp_path / "tls") is None
    with pytest.raises(NoTarget, match=r"can't be made without 'cryptography': pip install .*auth"):
        await FAULTS[0].inject(bare_stage(), random.Random(1))


@pytest.mark.parametrize("shown", [[], ["a"], ["a", "a", "b"], ["b", "b"]])
def test_a_certificate_that_changes_once_is_fine(shown):
    assert turned_back(shown, ["a", "b"]) == ""


@pytest.mark.parametrize("shown", [["a", "b", "a"], ["a", "c"], [""]])
def test_a_certificate_that_comes_back_or_is_another_is_not(shown):
    assert "a client was shown" in turned_back(shown, ["a", "b"])
