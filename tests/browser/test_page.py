"""The page in headless Chromium, as a person has it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dbmanager.auth import UnauthenticatedError
from dbmanager.rest import application
from dbmanager.rows import NewRow, Origin, Report, split_time
from dbmanager.store import Store
from tests.support import chromium
from tests.support.rest import BEGIN, put, put_curves, serving

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.binary() is None, reason="no Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with chromium.Browser() as browser:
        yield browser


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    yield store
    store.close()


@pytest.fixture
def page(browser: chromium.Browser, store: Store) -> Iterator[str]:
    """The page's address; after the test the browser must have been content, and asked nobody else."""
    browser.requests.clear()
    browser.errors.clear()
    with serving(application(store)) as url:
        yield url
        browser.go("about:blank")
    assert browser.errors == []
    hosts = {urlsplit(request).netloc for request in browser.requests if request.startswith("http")}
    assert hosts <= {urlsplit(url).netloc}


def rows(browser: chromium.Browser, count: int) -> list[list[str]]:
    """The table's cells, once it has so many rows."""
    browser.until(f"document.querySelectorAll('#numbers tr').length === {count}", 60)
    cells: list[list[str]] = browser.evaluate(
        "[...document.querySelectorAll('#numbers tr')].map(row => [...row.cells]"
        ".filter(cell => cell.offsetParent).map(cell => cell.innerText.trim()))"
    )
    return cells


def click(browser: chromium.Browser, selector: str) -> None:
    browser.evaluate(f"document.querySelector({selector!r}).click()")


def ink(browser: chromium.Browser, canvas: str = ".uplot canvas:not(.glass)") -> int:
    """How many pixels of the plot are coloured."""
    found: int = browser.evaluate(
        f"""(() => {{
          const canvas = document.querySelector({canvas!r});
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          let count = 0;
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] && Math.max(data[i], data[i+1], data[i+2]) - Math.min(data[i], data[i+1], data[i+2]) > 60) count++;
          return count;
        }})()"""
    )
    return found


def plot_box(browser: chromium.Browser) -> Any:
    return browser.evaluate(
        "(r => [r.left, r.top, r.width, r.height])(document.querySelector('.u-over').getBoundingClientRect())"
    )


def test_the_newest_trials_are_drawn_at_once_and_others_by_choice(
    browser: chromium.Browser, store: Store, page: str
) -> None:
    put_curves(store, 3, 50)
    browser.go(page)
    assert [row[0] for row in rows(browser, 3)] == ["tune-0000", "tune-0001", "tune-0002"]
    full = ink(browser)
    assert full > 500
    click(browser, "#trials input")
    assert [row[0] for row in rows(browser, 2)] == ["tune-0001", "tune-0002"]
    assert 0 < ink(browser) < full
    click(browser, "#none")
    assert rows(browser, 0) == []
    assert browser.evaluate("document.querySelector('#empty').innerText") == "Choose trials on the left."
    click(browser, "#all")
    rows(browser, 3)


def test_any_metric_by_step_time_or_since_the_first_point(
    browser: chromium.Browser, store: Store, page: str
) -> None:
    put(store, "t", ["5", "1", "3"], metric="loss")
    put(store, "t", ["0.1", "0.9"], metric="acc", pod="other")
    browser.go(page + "#trial=t&metric=loss")
    assert rows(browser, 1) == [["t", "3", "3", "1 step 1", "5 step 0"]]
    browser.evaluate(
        "(s => { s.value = 'acc'; s.dispatchEvent(new Event('change')) })(document.querySelector('#metric'))"
    )
    browser.until("document.querySelector('#numbers').innerText.includes('0.9')")
    assert rows(browser, 1) == [["t", "2", "0.9", "0.1 step 0", "0.9 step 1"]]
    click(browser, "input[name=x][value=elapsed]")
    browser.until("location.hash.includes('x=elapsed')")
    click(browser, "input[name=x][value=time]")
    browser.until("location.hash.includes('x=time')")
    browser.until("document.querySelectorAll('#numbers tr').length === 1")
    # The address holds it all: another browser shows the same.
    assert browser.evaluate("location.hash") == "#trial=team-a%2Ft&metric=acc&x=time"
    assert browser.evaluate("document.querySelector('#trials input').checked")


def test_new_points_appear_by_themselves(browser: chromium.Browser, store: Store, page: str) -> None:
    put(store, "t", ["5", "4"])
    browser.go(page)
    rows(browser, 1)
    browser.until("document.querySelector('#status').innerText === 'live'")
    before = ink(browser)
    put(store, "t", ["1", "nan"], first=2)
    browser.until("document.querySelector('#numbers').innerText.includes('1 step 2')", 15)
    (row,) = rows(browser, 1)
    assert row[1] == "4 1 not finite"
    assert ink(browser) != before
    put(store, "t", ["7"], attempt=1)  # a retry: the curve becomes that attempt's
    browser.until("document.querySelector('#numbers').innerText.includes('7 step 0')", 15)
    assert rows(browser, 1)[0][1] == "1"


def test_attempts_and_pods_apart(browser: chromium.Browser, store: Store, page: str) -> None:
    put(store, "t", ["9"], attempt=0, pod="w0")
    put(store, "t", ["8", "7"], attempt=1, pod="w0x")
    put(store, "t", ["6"], attempt=1, pod="w1x")
    browser.go(page)
    assert [row[:2] for row in rows(browser, 1)] == [["t", "3"]]
    click(browser, "#apart")
    assert [row[:4] for row in rows(browser, 3)] == [
        ["t", "0", "w0", "1"],
        ["t", "1", "w0x", "2"],
        ["t", "1", "w1x", "1"],
    ]


def test_the_best_so_far_is_marked_where_it_was_reached(
    browser: chromium.Browser, store: Store, page: str
) -> None:
    put(store, "t", ["5", "4", "nan", "1", "2", "3"])
    browser.go(page)
    assert rows(browser, 1)[0][3] == "1 step 3"
    without = ink(browser)
    click(browser, "input[name=best][value=least]")
    assert ink(browser) > without  # the staircase and its dot
    browser.evaluate(
        "(s => { s.value = 10; s.dispatchEvent(new Event('input')) })(document.querySelector('#smoothing'))"
    )
    assert browser.evaluate("document.querySelector('#smoothing-value').innerText") == "10 %"
    click(browser, "#log")
    assert ink(browser) > 0


def test_a_log_scale_of_nothing_above_zero_says_so(
    browser: chromium.Browser, store: Store, page: str
) -> None:
    put(store, "t", ["-1", "-2"])
    browser.go(page)
    rows(browser, 1)
    click(browser, "#log")
    assert "above zero" in browser.until("document.querySelector('#empty').innerText")
    click(browser, "#log")
    assert browser.evaluate("document.querySelector('#empty').hidden")


def test_dragging_asks_for_more_points_of_the_range(
    browser: chromium.Browser, store: Store, page: str
) -> None:
    values = [str(1 + n % 7) for n in range(20_000)]
    for first in range(0, 20_000, 5000):
        put(store, "t", values[first : first + 5000], first=first)
    browser.go(page)
    rows(browser, 1)
    left, top, width, _ = plot_box(browser)
    browser.drag((left + width * 0.50, top + 50), (left + width * 0.51, top + 60))
    browser.until("!document.querySelector('#reset').disabled")
    browser.until("document.querySelectorAll('#numbers tr').length === 1")
    assert rows(browser, 1)[0][1] == "20,000"  # numbers are of the whole
    click(browser, "#reset")
    browser.until("document.querySelector('#reset').disabled")


def test_a_hundred_trials_of_ten_thousand_points_are_usable(
    browser: chromium.Browser, store: Store, page: str
) -> None:
    for trial in range(100):
        rows_ = [
            NewRow(*split_time(BEGIN + n * 10**9), "loss", f"{(n * 7919 + trial) % 1000 / 10}", n)
            for n in range(10_000)
        ]
        futures = [
            store.report(
                Report(
                    f"t-{trial:03}", rows_[first : first + 5000], Origin("a", f"p{trial}", f"s{trial}", first)
                )
            )
            for first in (0, 5000)
        ]
        for future in futures:
            future.result()
    browser.go(page)
    rows(browser, 8)
    click(browser, "#all")
    assert all(row[1] == "10,000" for row in rows(browser, 100))
    sent = browser.evaluate(
        "performance.getEntriesByType('resource').filter(e => e.name.endsWith('curves')).at(-1).encodedBodySize"
    )
    assert 0 < sent < 2_000_000
    left, top, width, height = plot_box(browser)
    for x in range(10):  # a mouse moves more than once
        browser.mouse("mouseMoved", left + width / 2 + x, top + height / 2)
    assert browser.until("!document.querySelector('#tip').hidden && document.querySelector('#tip').innerText")


def test_the_csv_holds_every_point_of_the_metric(
    browser: chromium.Browser, store: Store, page: str, tmp_path: Path
) -> None:
    put(store, "a", ["1", "2"])
    put(store, "b", ["3"])
    put(store, "b", ["4"], metric="other")
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.go(page + "#trial=a&trial=b&metric=loss")
    rows(browser, 2)
    click(browser, "#download")
    browser.until(
        "document.querySelector('#download').innerText === 'Download CSV' && !document.querySelector('#download').disabled"
    )
    for _ in range(100):
        if (tmp_path / "trials-loss.csv").exists():
            break
        browser.evaluate("new Promise(done => setTimeout(done, 50))")
    lines = (tmp_path / "trials-loss.csv").read_text().splitlines()
    assert lines[0].startswith("trial,namespace,name,value,time")
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["a", "team-a", "loss", "1"],
        ["a", "team-a", "loss", "2"],
        ["b", "team-a", "loss", "3"],
    ]


def test_everything_can_be_done_from_the_keyboard(browser: chromium.Browser, store: Store, page: str) -> None:
    put(store, "t", ["5", "4", "3", "2"])
    browser.go(page)
    rows(browser, 1)
    reached = []
    for _ in range(40):
        browser.key("Tab")
        reached.append(
            browser.evaluate(
                "(e => e.id || e.name || e.dataset?.sort || e.type || e.tagName)(document.activeElement)"
            )
        )
    wanted = {
        "live",
        "theme",
        "prefix",
        "namespace",
        "all",
        "none",
        "checkbox",
        "metric",
        "x",
        "best",
        "smoothing",
        "log",
    }
    assert wanted | {"apart", "download", "plot", "least"} <= set(reached)
    browser.evaluate("document.querySelector('#plot').focus()")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    assert browser.evaluate("document.querySelector('#reading').innerText") == "t: loss 4 at step 1"
    browser.key("+")
    browser.until("!document.querySelector('#reset').disabled")
    browser.key("0")
    browser.until("document.querySelector('#reset').disabled")
    nameless = browser.evaluate(
        "[...document.querySelectorAll('button, input, select')].filter(e => !(e.innerText || e.labels?.length"
        " || e.ariaLabel || e.getAttribute('aria-label'))).map(e => e.outerHTML)"
    )
    assert nameless == []


def test_names_are_text_whatever_they_hold(browser: chromium.Browser, store: Store, page: str) -> None:
    name = "<img src=x onerror=alert(1)>"
    put(store, name, ["1"], metric="<b>m</b>", pod="p")
    browser.go(page)
    assert rows(browser, 1)[0][0] == name
    assert browser.evaluate("document.querySelectorAll('#trials img, #numbers img, #metric b').length") == 0


class OneNamespace:
    """Tokens that are the name of their namespace."""

    async def namespace(self, authorization: str | None) -> str | None:
        if not authorization:
            raise UnauthenticatedError("authorization: no bearer token")
        return authorization.removeprefix("Bearer ")


def test_where_readers_must_prove_who_they_are_the_page_asks_for_a_token(
    browser: chromium.Browser, store: Store
) -> None:
    put(store, "mine", ["1"], namespace="a")
    put(store, "theirs", ["2"], namespace="b")
    with serving(application(store, OneNamespace())) as url:
        browser.go(url)
        browser.until("!document.querySelector('#token-form').hidden")
        assert "no bearer token" in browser.evaluate("document.querySelector('#fault').innerText")
        browser.evaluate("document.querySelector('#token').value = 'a'")
        click(browser, "#token-form button")
        assert [row[0] for row in rows(browser, 1)] == ["mine"]
        assert browser.evaluate("document.querySelector('#fault').hidden")
        browser.until("document.querySelector('#status').innerText === 'live'")
        put(store, "mine", ["0.5"], namespace="a", first=1)
        browser.until("document.querySelector('#numbers').innerText.includes('0.5 step 1')", 15)
        browser.evaluate("sessionStorage.clear()")
        browser.go("about:blank")


def test_light_dark_and_what_it_looks_like(
    browser: chromium.Browser, store: Store, page: str, tmp_path: Path
) -> None:
    """Writes the screenshot that the docs show when TRIALTAP_SCREENSHOT names a file."""
    put_curves(store, 6, 400)
    browser.go(
        page
        + "#"
        + "&".join(f"trial=team-a/tune-{n:04}" for n in range(6))
        + "&metric=loss&best=least&smoothing=3"
    )
    rows(browser, 6)
    backs = []
    for dark in (True, False):
        browser.dark(dark)
        browser.until(f"matchMedia('(prefers-color-scheme: dark)').matches === {str(dark).lower()}")
        backs.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backs[0] != backs[1]
    left, top, width, height = plot_box(browser)
    browser.mouse("mouseMoved", left + width * 0.3, top + height * 0.5)
    shot = Path(os.environ.get("TRIALTAP_SCREENSHOT") or tmp_path / "page.png")
    browser.evaluate("new Promise(done => setTimeout(done, 300))")
    browser.screenshot(shot)
    assert shot.stat().st_size > 20_000
