"""The webhook as a process: TLS, a certificate that changes, signals, flags."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from tests.support.cluster import wait_until
from tests.support.fakeapi import FakeAPI
from tests.support.objects import obj, pod, review, trial
from tests.support.webhook import Webhook
from trialtap.tls import Files, Pair, Serving, UnusablePair
from webhook.server import Address

T1 = trial("t1", spec={"metricsCollector": {"collector": {"kind": "Push"}}})
JOB = obj("batch/v1", "Job", "t1", T1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Webhook]:
    objects = tmp_path / "objects.json"
    objects.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [T1, JOB]}))
    made = Webhook(tmp_path, "--objects", objects).start()
    yield made
    made.stop()


def ask(client: httpx.Client, served: Webhook) -> bool:
    answer = client.post(f"{served.url}/mutate-pod?timeout=10s", json=review(pod(JOB)))
    assert answer.status_code == 200, answer.text
    return "patch" in answer.json()["response"]


def test_a_review_is_answered_over_https_and_counted_over_http(served: Webhook) -> None:
    with httpx.Client(verify=served.context) as client:
        assert ask(client, served)
        assert client.get(f"{served.url}/readyz").text == "ok\n"
        assert client.get(f"{served.url}/nothing").status_code == 404
    assert served.metric('trialtap_webhook_admissions_total{outcome="patched",path="/mutate-pod"}') == 1
    assert served.metric("trialtap_webhook_certificate_expiry_timestamp_seconds") > time.time()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_tls_older_than_1_2_and_plain_http_are_refused(served: Webhook) -> None:
    address = (served.url.rpartition("/")[2].partition(":")[0], int(served.url.rpartition(":")[2]))
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(address) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(raw)
    current = ssl.create_default_context(cafile=served.folder / "ca.crt")
    current.maximum_version = ssl.TLSVersion.TLSv1_2
    raw = socket.create_connection(address)
    with current.wrap_socket(raw, server_hostname="127.0.0.1") as secured:
        assert secured.version() == "TLSv1.2"
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{served.url.replace('https', 'http')}/mutate-pod", timeout=5)
    with httpx.Client(verify=served.context) as client:
        assert ask(client, served)


def test_a_new_certificate_serves_new_connections_and_drops_none(served: Webhook) -> None:
    with httpx.Client(verify=served.context) as standing:
        assert ask(standing, served)
        before = served.context
        served.issue()

        def renewed() -> bool:
            try:
                with httpx.Client(verify=served.context) as client:
                    return ask(client, served)
            except httpx.ConnectError:
                return False

        wait_until(renewed, 20, "the new certificate")
        assert ask(standing, served)  # over the connection from before
        with httpx.Client(verify=before) as old, pytest.raises(httpx.ConnectError):
            ask(old, served)


def test_a_half_written_pair_is_not_served(served: Webhook) -> None:
    (served.folder / "tls.key").write_text("nonsense")
    served.wait_for_log("the certificate before it is served on")
    with httpx.Client(verify=served.context) as client:
        assert ask(client, served)


def test_a_client_that_says_nothing_or_half_of_it_keeps_nobody_waiting(served: Webhook) -> None:
    host, port = "127.0.0.1", int(served.url.rpartition(":")[2])
    stalled = [socket.create_connection((host, port)) for _ in range(50)]
    context = served.context
    for n in range(20):
        secured = context.wrap_socket(socket.create_connection((host, port)), server_hostname=host)
        half = b"POST /mutate-pod HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        secured.sendall(half if n % 2 else half[:40])
        stalled.append(secured)
    with httpx.Client(verify=context) as client:
        assert all(ask(client, served) for _ in range(20))
    for connection in stalled:
        connection.close()


def test_a_body_that_is_broken_off_leaves_no_traceback(served: Webhook) -> None:
    host, port = "127.0.0.1", int(served.url.rpartition(":")[2])
    with served.context.wrap_socket(socket.create_connection((host, port)), server_hostname=host) as secured:
        secured.sendall(
            b"POST /mutate-pod HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
    served.wait_for_log("broken off")
    assert "Traceback" not in served.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_answers_what_it_has_and_exits_0(served: Webhook, number: signal.Signals) -> None:
    answered: list[bool] = []

    def work() -> None:
        with httpx.Client(verify=served.context) as client:
            answered.extend(ask(client, served) for _ in range(20))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    os.kill(served.pid, number)
    assert served.stop() == 0
    assert answered == [True] * 20


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "webhook", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_what_it_cannot_start_with_is_said_in_one_line(tmp_path: Path, served: Webhook) -> None:
    pair = ["--cert", served.folder / "tls.crt", "--key", served.folder / "tls.key"]
    here = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    bad_settings, bad_objects = tmp_path / "settings.yaml", tmp_path / "bad.yaml"
    bad_settings.write_text("sidecar: {imagge: x}")
    bad_objects.write_text("- just\n- words\n")
    wrong: list[tuple[list[str | Path], str]] = [
        ([*here, "--cert", tmp_path / "no", "--key", tmp_path / "no"], "no"),
        (
            [*here, "--cert", served.folder / "tls.key", "--key", served.folder / "tls.key"],
            "cannot be served",
        ),
        ([*here, *pair, "--settings", bad_settings], "sidecar.imagge"),
        ([*here, *pair, "--objects", bad_objects], "no Kubernetes object"),
        ([*here, *pair, "--kubeconfig", tmp_path / "none"], "--kubeconfig"),
        (
            [
                *pair,
                "--objects",
                tmp_path / "objects.json",
                "--metrics-listen",
                "127.0.0.1:0",
                "--listen",
                f"127.0.0.1:{served.url.rpartition(':')[2]}",
            ],
            "",
        ),
    ]
    for arguments, said in wrong:
        done = run(*arguments)
        assert done.returncode != 0
        assert said in done.stderr
        assert "Traceback" not in done.stderr


VERSIONS = [
    ({"major": "1", "minor": "28+", "gitVersion": "v1.28.3-eks"}, "this cluster is Kubernetes v1.28.3-eks"),
    ({"major": "1", "minor": "29", "gitVersion": "v1.29.0"}, ""),
    (None, "/version: 404"),
]


@pytest.mark.parametrize(("version", "said"), VERSIONS)
async def test_a_cluster_without_native_sidecars_is_told_at_the_start(
    tmp_path: Path, version: dict[str, str] | None, said: str
) -> None:
    api = FakeAPI()
    api.fault = lambda r: web.json_response(version) if version and r.path == "/version" else None
    async with api.serve():
        kubeconfig = api.kubeconfig(tmp_path)
        served = Webhook(tmp_path, "--kubeconfig", kubeconfig)
        await asyncio.to_thread(lambda: served.start().wait_ready())
        if said:
            await asyncio.to_thread(served.wait_for_log, said)
        assert await asyncio.to_thread(served.stop) == 0
    assert ("native sidecars need" in served.log) == said.startswith("this cluster")


ADDRESSES = [("1.2.3.4:80", ("1.2.3.4", 80)), ("[::1]:8443", ("::1", 8443)), (":8443", ("0.0.0.0", 8443))]  # noqa: S104


@pytest.mark.parametrize(("text", "expected"), ADDRESSES)
def test_an_address_is_read(text: str, expected: tuple[str, int]) -> None:
    assert tuple(Address.parse(text)) == expected


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:99999", "80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        Address.parse(text)


def test_a_pair_that_does_not_belong_together_leaves_the_one_before(tmp_path: Path) -> None:
    first, second = Webhook(tmp_path / "a"), Webhook(tmp_path / "b")
    good = Files(first.folder / "tls.crt", first.folder / "tls.key").read()
    serving = Serving()
    serving.use(good)
    expires = serving.expires
    for broken in (
        Pair(good.certificate, (second.folder / "tls.key").read_bytes()),
        Pair(b"", good.key),
        Pair(good.certificate, b""),
        Pair(good.certificate[:300], good.key),
    ):
        with pytest.raises(UnusablePair):
            serving.use(broken)
    assert serving.expires == expires


async def test_files_that_vanish_for_a_moment_are_waited_for(tmp_path: Path) -> None:
    first = Webhook(tmp_path)
    files = Files(tmp_path / "tls.crt", tmp_path / "tls.key", poll_seconds=0.01)
    before = files.read()
    key = (tmp_path / "tls.key").read_bytes()
    (tmp_path / "tls.key").unlink()

    def restore() -> None:
        (tmp_path / "tls.key").write_bytes(key)
        first.issue()

    threading.Timer(0.1, restore).start()
    pair = await files.changed()
    while pair.certificate == before.certificate:
        pair = await files.changed()
    assert pair.key != before.key
