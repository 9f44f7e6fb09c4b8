"""The PEM files of a TLS listener make a context for HTTP/2, or an error that names the wrong file."""

import datetime
import os
import ssl
import time
from dataclasses import replace

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from engine.server.reloading import NotReloaded
from engine.server.tls import HTTP_1, HTTP_2, ListenerTls, TlsUnusable, credentials, tls_blocks
from engine.settings.tls import PemFile, TlsFiles
from tests.support.certificates import Authority
from tests.support.logged import Logged


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def server(authority):
    return authority.sign("server")


def files(server, *, certificate=None, key=None, client_roots=None):
    return TlsFiles(
        certificate=PemFile(certificate or str(server.certificate), "grpc-server-cert"),
        key=PemFile(key or str(server.key), "grpc-server-key"),
        client_roots=client_roots and PemFile(client_roots, "grpc-root-cert"),
    )


def server_context(files):
    return credentials(files, HTTP_2).context


def shake_hands(server, client):
    """Have two contexts meet in memory; return the client's end, or raise what either of them raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    pending = [here, there]
    for _ in range(8):
        for end in list(pending):
            try:
                end.do_handshake()
                pending.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not pending
    return here


def client_context(authority, **versions):
    context = ssl.create_default_context(cafile=str(authority.root))
    context.set_alpn_protocols(["http/1.1", "h2"])
    for name, version in versions.items():
        setattr(context, name, version)
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_agree_on_http_2(authority, server, version):
    context = server_context(files(server))
    client = client_context(authority, minimum_version=version, maximum_version=version)
    end = shake_hands(context, client)
    assert end.selected_alpn_protocol() == "h2"
    assert end.version() == version.name.replace("_", ".")


def test_old_versions_of_tls_are_not_spoken(server):
    assert server_context(files(server)).minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.fixture
def mutual(authority, server):
    """What a listener takes that asks its clients for certificates, and a client without one."""
    return server_context(files(server, client_roots=str(authority.root))), client_context(authority)


def test_mutual_tls_takes_a_client_that_the_roots_vouch_for(authority, mutual):
    context, client = mutual
    mine = authority.sign("client")
    client.load_cert_chain(mine.certificate, mine.key)
    assert shake_hands(context, client).selected_alpn_protocol() == "h2"


def test_mutual_tls_turns_away_every_other_client(mutual, tmp_path):
    context, client = mutual
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(context, client)
    stranger = Authority(tmp_path, "elsewhere").sign("stranger")
    client.load_cert_chain(stranger.certificate, stranger.key)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(context, client)


def test_who_shows_no_certificate_gets_through_where_that_is_optional(authority, server, tmp_path):
    asking = replace(files(server, client_roots=str(authority.root)), optional=True)
    context = credentials(asking, HTTP_2).context
    client = client_context(authority)
    assert shake_hands(context, client).selected_alpn_protocol() == "h2"
    stranger = Authority(tmp_path, "elsewhere").sign("stranger")
    client.load_cert_chain(stranger.certificate, stranger.key)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(context, client)


def test_a_listener_of_http_offers_its_own_protocol(authority, server):
    context = credentials(files(server), HTTP_1).context
    assert shake_hands(context, client_context(authority)).selected_alpn_protocol() == "http/1.1"


# -- when certificates expire

DAY = 24 * 3600.0


@pytest.fixture
def log():
    return Logged()


def listening(server, log, now=None):
    """The TLS of a listener `http`, on a clock that stands at `now` (seconds since the epoch)."""
    stands = datetime.datetime.now(datetime.UTC).timestamp() if now is None else now
    return ListenerTls("http", files(server), HTTP_1, wall_clock=lambda: int(stands * 1000), log=log)


@pytest.mark.parametrize(("days", "said"), [(15, ""), (13, "expires soon"), (-1, "has expired")])
def test_a_certificate_that_has_expired_or_soon_will_earns_a_warning(authority, log, days, said):
    served = authority.sign("served", lifetime=datetime.timedelta(days=days))
    tls = listening(served, log)
    assert tls.expires_at == pytest.approx(
        datetime.datetime.now(datetime.UTC).timestamp() + days * DAY, abs=600
    )
    warnings = [(level, keys["warning"], keys["listener"]) for _, level, keys in log]
    assert warnings == (
        [("warning", f"the certificate in '{served.certificate}' {said}", "http")] if said else []
    )


def test_a_certificate_that_clients_refuse_in_any_case_earns_a_warning_and_has_no_metric(tmp_path, log):
    path = tmp_path / "clients"
    path.mkdir()
    unfit = Authority(path).sign("unfit", usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    tls = listening(unfit, log)
    assert tls.expires_at is None
    (told,) = log.of("certificate_doubtful")
    assert told["warning"].startswith(f"clients will refuse the certificate in '{unfit.certificate}': ")
    assert [block.series for block in tls_blocks([tls])] == [[]]


def test_the_metric_tells_when_the_certificate_of_each_listener_expires(server, log):
    tls = listening(server, log)
    (block,) = tls_blocks([tls])
    ((labels, value, _),) = block.series
    assert (labels.named, value) == ({"listener": "http"}, tls.expires_at)
    assert list(tls_blocks([])) == []


def test_what_is_read_again_is_shown_to_the_next_connection_and_its_expiry_told(authority, server, log):
    tls = listening(server, log)
    before = tls.context()
    later = authority.sign("server", lifetime=datetime.timedelta(days=90))
    assert later == server
    found = tls.read()
    assert tls.context() is before
    told = tls.adopt(found)
    assert tls.context() is found.context
    assert tls.expires_at == pytest.approx(
        datetime.datetime.now(datetime.UTC).timestamp() + 90 * DAY, abs=600
    )
    assert told["expires"] == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(tls.expires_at))
    server.key.write_text("")
    with pytest.raises(NotReloaded, match="holds no PEM private key"):
        tls.read()


# -- what is wrong with files


def complaint(*arguments, **changes):
    with pytest.raises(TlsUnusable) as caught:
        server_context(files(*arguments, **changes))
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("certificate", "--grpc-server-cert"),
        ("key", "--grpc-server-key"),
        ("client_roots", "--grpc-root-cert"),
    ],
)
def test_a_file_that_is_not_there_is_named_with_its_flag(server, field, flag):
    assert complaint(server, **{field: "/nowhere/at.pem"}) == (
        f"{flag}: '/nowhere/at.pem' can't be read: No such file or directory"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for the superuser")
def test_a_key_that_may_not_be_read_is_named_with_the_reason(server):
    server.key.chmod(0)
    assert complaint(server) == f"--grpc-server-key: '{server.key}' can't be read: Permission denied"


def test_files_that_were_mixed_up_are_noticed(server):
    mixed = files(server, certificate=str(server.key), key=str(server.certificate))
    with pytest.raises(TlsUnusable, match=r"--grpc-server-cert: '.*server\.key' holds no PEM certificate"):
        server_context(mixed)
    assert complaint(server, key=str(server.certificate)).startswith(
        f"--grpc-server-key: '{server.certificate}' holds no PEM private key"
    )


def test_a_key_of_another_certificate_is_named(authority, server):
    other = authority.sign("other")
    assert complaint(server, key=str(other.key)) == (
        f"--grpc-server-key: the key in '{other.key}' does not belong to the certificate in '{server.certificate}'"
    )


def test_an_encrypted_key_is_refused_and_no_password_asked_for(authority):
    secret = authority.sign("secret", password=b"s3cret")
    text = complaint(secret)
    assert text.startswith(f"--grpc-server-key: the key in '{secret.key}' is encrypted")
    assert "openssl pkey" in text


@pytest.mark.parametrize("field", ["certificate", "client_roots"])
def test_a_certificate_that_is_damaged_is_named(server, tmp_path, field):
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n")
    assert f"'{damaged}'" in complaint(server, **{field: str(damaged)})


def test_lines_that_are_no_base64_are_told_as_damage(server, tmp_path):
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert complaint(server, client_roots=str(damaged)).endswith("can't be used: its PEM is damaged")
