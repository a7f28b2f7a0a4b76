"""One timer bounds every request."""

import asyncio

import pytest

from webhook.overdue import Overdue


async def bounded(overdue: Overdue, seconds: float, work: float) -> str:
    task = asyncio.current_task()
    assert task is not None
    overdue.bound(task, seconds)
    try:
        await asyncio.sleep(work)
    except asyncio.CancelledError:
        if not overdue.free(task):
            raise
        await asyncio.sleep(0)  # and goes on as if nothing had been
        return "late"
    overdue.free(task)
    return "in time"


async def test_what_takes_too_long_is_cancelled_and_nothing_else() -> None:
    overdue = Overdue()
    begin = asyncio.get_running_loop().time()
    done = await asyncio.gather(
        bounded(overdue, 0.1, 30),
        bounded(overdue, 30, 0.3),
        bounded(overdue, 0.2, 30),
        bounded(overdue, 30, 0),
    )
    assert done == ["late", "in time", "late", "in time"]
    assert asyncio.get_running_loop().time() - begin < 5
    assert not overdue._until
    assert not overdue._cancelled


async def test_a_cancellation_by_anybody_else_is_passed_on() -> None:
    overdue = Overdue()
    task = asyncio.create_task(bounded(overdue, 30, 30))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_looks_only_while_there_is_something_to_look_at() -> None:
    overdue = Overdue()
    assert await bounded(overdue, 30, 0) == "in time"
    await asyncio.sleep(0.3)
    assert overdue._looking is False
    assert await bounded(overdue, 0.1, 30) == "late"
