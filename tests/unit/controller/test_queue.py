"""The queue: one key once at a time, again when it came meanwhile, later with growing pauses when it fails."""

import asyncio

from controller.queue import Queue


async def test_a_key_is_handled_once_at_a_time_and_once_more_when_it_came_meanwhile() -> None:
    running, most, handled = 0, 0, []
    gate = asyncio.Event()

    async def handle(key: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        handled.append(key)
        await gate.wait()
        running -= 1

    queue: Queue[str] = Queue(handle, lambda _key, _error: None)
    workers = [asyncio.create_task(queue.work()) for _ in range(3)]
    for _ in range(5):
        queue.add("a")
        await asyncio.sleep(0)
    gate.set()
    await asyncio.sleep(0.05)
    assert (handled, most) == (["a", "a"], 1)
    for worker in workers:
        worker.cancel()


async def test_a_failure_is_told_and_tried_again_and_other_keys_go_on() -> None:
    seen: list[str] = []
    faults: list[str] = []

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "bad" and seen.count("bad") < 3:
            raise ValueError("no")

    queue: Queue[str] = Queue(handle, lambda key, error: faults.append(f"{key}: {error}"))
    worker = asyncio.create_task(queue.work())
    queue.add("bad")
    queue.add("good")
    async with asyncio.timeout(5):
        while seen.count("bad") < 3:  # noqa: ASYNC110 - what is waited for is the queue's own doing
            await asyncio.sleep(0.01)
    assert seen[:2] == ["bad", "good"]
    assert faults == ["bad: no"] * 2
    worker.cancel()


async def test_a_look_may_be_asked_for_later_and_the_earliest_time_holds() -> None:
    seen: list[str] = []

    async def handle(key: str) -> float | None:
        seen.append(key)
        return 0.05 if len(seen) == 1 else None

    queue: Queue[str] = Queue(handle, lambda _key, _error: None)
    worker = asyncio.create_task(queue.work())
    queue.later("a", 60)
    queue.later("a", 0.01)
    await asyncio.sleep(0.3)
    assert seen == ["a", "a"]
    worker.cancel()
