"""Image registries for tests: a real one on loopback, and servers that misbehave."""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

JSON = dict[str, Any]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
PASSWORD_FILE = "someone:$2b$04$3kl6QBcM0HeK./9DgnNmlOXwXMTjSrdX3WEWZqRBslicUY0lmjymy\n"  # noqa: S105
"""User `someone`, password `password`."""


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Registry:
    """A running distribution server."""

    host: str
    log: Path
    auth: tuple[str, str] | None = None
    verify: Any = False
    scheme: str = "http"

    def push(self, repository: str, tag: str, config: JSON | bytes, *, arch: str = "amd64") -> str:
        """Push an image without layers; the digest of its manifest."""
        blob = config if isinstance(config, bytes) else json.dumps({"config": config}).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": self.push_blob(repository, blob),
                    "size": len(blob),
                },
                "layers": [],
                "annotations": {"arch": arch},
            }
        ).encode()
        return self.push_manifest(repository, tag or digest_of(manifest), manifest, MANIFEST)

    def push_index(self, repository: str, tag: str, manifests: Mapping[str, str]) -> str:
        """Push an index of `os/arch` to manifest digest."""
        entries = []
        for platform, digest in manifests.items():
            system, arch = platform.split("/")
            with self._client() as client:
                size = int(
                    client.head(f"/v2/{repository}/manifests/{digest}", headers={"Accept": MANIFEST}).headers[
                        "content-length"
                    ]
                )
            entries.append(
                {
                    "mediaType": MANIFEST,
                    "digest": digest,
                    "size": size,
                    "platform": {"os": system, "architecture": arch},
                }
            )
        body = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
        return self.push_manifest(repository, tag, body, INDEX)

    def push_blob(self, repository: str, blob: bytes) -> str:
        with self._client() as client:
            location = client.post(f"/v2/{repository}/blobs/uploads/").raise_for_status().headers["location"]
            place = httpx.URL(location).copy_merge_params({"digest": digest_of(blob)})
            client.put(place, content=blob).raise_for_status()
        return digest_of(blob)

    def push_manifest(self, repository: str, tag: str, body: bytes, kind: str) -> str:
        with self._client() as client:
            url = f"/v2/{repository}/manifests/{tag}"
            client.put(url, content=body, headers={"Content-Type": kind}).raise_for_status()
        return digest_of(body)

    def requests(self) -> list[str]:
        """`METHOD path` of each request that was answered so far."""
        return re.findall(r'"((?:GET|HEAD) /v2/\S+) HTTP', self.log.read_text())

    def _client(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"{self.scheme}://{self.host}", auth=self.auth, verify=self.verify, trust_env=False
        )


@contextlib.contextmanager
def run_registry(
    environment: Mapping[str, str] | None = None, files: Mapping[str, bytes] | None = None
) -> Iterator[Registry]:
    """Run Debian's docker-registry on a free port of 127.0.0.1; skip where it is missing.

    `{folder}` in the environment is where `files` are put.
    """
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("docker-registry is missing: apt-get install docker-registry")
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        config = folder / "config.yml"
        config.write_text(
            "version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: '127.0.0.1:0'}\n"
            % (folder / "data")
        )
        (folder / "htpasswd").write_text(PASSWORD_FILE)
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content)
        log = folder / "log"
        variables = {key: value.format(folder=folder) for key, value in (environment or {}).items()}
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [program, "serve", str(config)], stdout=sink, stderr=sink, env={**os.environ, **variables}
            )
        try:
            yield Registry(_listening(process, log), log)
        finally:
            process.terminate()
            process.wait(10)


def _listening(process: "subprocess.Popen[bytes]", log: Path) -> str:
    for _ in range(200):
        if match := re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text()):
            return match[1]
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError(log.read_text())


Handler = Callable[[str, dict[str, str], asyncio.StreamWriter], Awaitable[None]]
"""(`METHOD target`, headers, writer) -> answered"""


@contextlib.asynccontextmanager
async def run_fake(handler: Handler) -> AsyncIterator[str]:
    """Serve HTTP by hand; gives HOST:PORT."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            await handler(f"{method} {target}", headers, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()


async def reply(writer: asyncio.StreamWriter, status: int, body: bytes = b"", **headers: str) -> None:
    """Answer a request whole."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
