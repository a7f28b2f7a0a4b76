"""Reviews per second of server CPU: our webhook against the least that one in Go does, in one run.

    python -m bench.admission          CPU per review, p99 at 200 reviews a second
    python -m bench.admission memory   resident memory with 10,000 trials in the cache, and with none

The peer (bench/peers/go-webhook) decodes the review into maps, appends a fixed container and answers; ours
finds the trial, plans the injection (once for equal pods), makes the patch, logs a line and counts. Both over
HTTPS, keep-alive.
"""

import argparse
import asyncio
import copy
import itertools
import json
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools
import uvloop

from tests.support.fakeapi import FakeAPI
from tests.support.objects import trial
from tests.support.webhook import Webhook

CASE = Path(__file__).parent.parent / "tests" / "cases" / "admission" / "job-stdout.json"
PEER = Path(__file__).parent / "peers" / "go-webhook"
ROUNDS = 5
REVIEWS = 3000
CONNECTIONS = 8


class Answer:
    """Collects one HTTP response."""

    def __init__(self) -> None:
        self.done = False
        self.body = b""

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self.body += body

    def on_message_complete(self) -> None:
        """The end of it."""
        self.done = True


class Client:
    """Keep-alive connections to one server, which send the reviews in turn."""

    def __init__(self, url: str, ca: Path, bodies: Sequence[bytes]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._context = ssl.create_default_context(cafile=ca)
        head = f"POST /mutate-pod?timeout=10s HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        requests = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
        self._requests = itertools.cycle(requests)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection."""
        return await asyncio.open_connection(self._host, self._port, ssl=self._context)

    async def ask(self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
        """One review; the answer's body."""
        reader, writer = connection
        writer.write(next(self._requests))
        answer = Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.done:
            parser.feed_data(await reader.read(65536))
        assert parser.get_status_code() == 200, answer.body
        return answer.body

    async def flood(self, reviews: int) -> None:
        """So many reviews as fast as they are answered."""

        async def one() -> None:
            connection = await self.connect()
            for _ in range(reviews // CONNECTIONS):
                await self.ask(connection)
            connection[1].close()

        await asyncio.gather(*(one() for _ in range(CONNECTIONS)))

    async def paced(self, rate: float, seconds: float) -> list[float]:
        """Reviews at a steady rate, whatever the answers do; seconds from when each was due to its answer."""
        free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            free.put_nowait(await self.connect())
        taken: list[float] = []

        async def one(due: float) -> None:
            connection = await free.get()
            await self.ask(connection)
            taken.append(time.perf_counter() - due)
            free.put_nowait(connection)

        begin = time.perf_counter()
        tasks = []
        for n in range(int(rate * seconds)):
            due = begin + n / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one(due)))
        await asyncio.gather(*tasks)
        return sorted(taken)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far: its threads' run times, which the kernel counts in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def build_peer(folder: Path) -> Path:
    """Compile the peer."""
    go = shutil.which("go")
    assert go, "the peer needs Go to be built"
    program = folder / "go-webhook"
    subprocess.run([go, "build", "-o", program, "."], cwd=PEER, check=True)
    return program


def written(review: dict[str, Any], number: int | None = None) -> bytes:
    """The review as it is sent; with a number, of a pod that is like no other's."""
    review = copy.deepcopy(review)
    if number is not None:
        review["request"]["object"]["metadata"]["labels"]["number"] = str(number)
    return json.dumps(review, separators=(",", ":")).encode()


async def per_cpu(client: Client, pid: int) -> float:
    """Reviews per second of the server's CPU."""
    before = cpu_seconds(pid)
    await client.flood(REVIEWS)
    return REVIEWS / (cpu_seconds(pid) - before)


async def compare(folder: Path) -> None:
    """Print CPU ratios and p99."""
    case = json.loads(CASE.read_text(encoding="utf-8"))
    same, different = [written(case["review"])], [written(case["review"], n) for n in range(REVIEWS)]
    objects = folder / "objects.json"
    objects.write_text(json.dumps({"kind": "List", "items": case["objects"]}), encoding="utf-8")
    ours = Webhook(folder, "--objects", objects).start()
    peer = subprocess.Popen(  # noqa: ASYNC220 - before anything is measured
        [build_peer(folder), folder / "tls.crt", folder / "tls.key"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert peer.stdout is not None
        peer_url = f"https://{peer.stdout.readline().strip().rpartition('=')[2]}"
        ca = folder / "ca.crt"
        for what, bodies in (("pods of one template", same), ("every pod different", different)):
            mine, theirs = Client(ours.url, ca, bodies), Client(peer_url, ca, bodies)
            for client in (mine, theirs):
                await client.flood(400)  # warm
            rounds = [(await per_cpu(mine, ours.pid), await per_cpu(theirs, peer.pid)) for _ in range(ROUNDS)]
            a, b = (statistics.median(column) for column in zip(*rounds, strict=True))
            ratio = statistics.median(x / y for x, y in rounds)
            print(f"{what}, reviews per CPU second: trialtap {a:,.0f}, Go peer {b:,.0f}, ratio {ratio:.2f}")
        for name, client in (("trialtap", mine), ("Go peer", theirs)):
            taken = await client.paced(200, 5)
            p50, p99 = (taken[int(len(taken) * q)] * 1000 for q in (0.5, 0.99))
            print(f"at 200 reviews a second: {name} p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    finally:
        peer.terminate()
        peer.wait()
        ours.stop()


async def memory(folder: Path) -> None:
    """Print resident memory with no trial, with 10,000, and after all have changed twice."""
    async with FakeAPI().serve() as api:
        kubeconfig = api.kubeconfig(folder)
        collection = "/apis/kubeflow.org/v1beta1/namespaces/hpo/trials"

        def fill(note: str) -> None:
            for n in range(10_000):
                api.put(collection, big_trial(n, note), silent=not note)

        empty = await asyncio.to_thread(
            lambda: Webhook(folder, "--kubeconfig", kubeconfig).start().wait_ready()
        )
        await asyncio.sleep(1)
        print(f"no trial: {empty.memory() / 2**20:.0f} MiB")
        await asyncio.to_thread(empty.stop)
        fill("")
        full = await asyncio.to_thread(
            lambda: Webhook(folder, "--kubeconfig", kubeconfig).start().wait_ready()
        )
        try:
            print(f"10,000 trials listed: {full.memory() / 2**20:.0f} MiB")
            calls = [request for request in api.requests if "trials" in request]
            for note in ("first", "second"):
                fill(note)
                while await asyncio.to_thread(full.metric, "trialtap_webhook_trials") < 10_000:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
                await asyncio.sleep(5)
                print(f"all of them changed, {note} time: {full.memory() / 2**20:.0f} MiB")
            print(f"requests for trials by both runs: {len(calls)} ({', '.join(sorted(set(calls)))})")
        finally:
            await asyncio.to_thread(full.stop)


def big_trial(n: int, note: str) -> dict[str, object]:
    """A Trial of about 5 kB, as an experiment with twenty parameters makes it."""
    made = trial(f"experiment-{n:05d}", uid=f"00000000-0000-0000-0000-{n:012d}")
    assignments = [{"name": f"parameter-{i}", "value": str(i * n * 0.001)} for i in range(20)]
    made["spec"]["parameterAssignments"] = assignments
    arguments = [f"--{a['name']}={a['value']}" for a in assignments]
    container = {"name": "main", "image": "registry.example.com/team/training:1.2.3", "args": arguments}
    made["spec"]["runSpec"]["spec"] = {"template": {"spec": {"containers": [container]}}}
    made["metadata"]["annotations"] = {"note": note}
    made["metadata"]["managedFields"] = [{"manager": "m", "fieldsV1": {f"f:{i}": {} for i in range(150)}}]
    made["status"] = {"conditions": [{"type": "Running", "status": "True", "message": "Trial is running"}]}
    return made


def main() -> int:
    """Run one of the two benches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("compare", "memory"), default="compare")
    what = parser.parse_args().what
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run({"compare": compare, "memory": memory}[what](Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
