"""The page and its files, which ask nothing of any other host."""

from importlib import resources
from typing import Final

from fastapi import FastAPI
from fastapi.responses import Response

FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/page/series.js": ("series.js", "text/javascript; charset=utf-8"),
    "/page/plot.js": ("plot.js", "text/javascript; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page/uplot.js": ("vendor/uplot.js", "text/javascript; charset=utf-8"),
    "/page/uplot.css": ("vendor/uplot.css", "text/css; charset=utf-8"),
    "/page/uplot.LICENSE": ("vendor/uplot.LICENSE", "text/plain; charset=utf-8"),
}
"""Path -> file in dbmanager/page, media type."""

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""The browser itself refuses any request to another host, inline scripts and being framed."""


def add(app: FastAPI) -> None:
    """Serve the page at `/` and its files under `/page/`."""
    folder = resources.files("dbmanager").joinpath("page")
    for path, (name, media) in FILES.items():
        content = folder.joinpath(name).read_bytes()

        def serve(content: bytes = content, media: str = media) -> Response:
            return Response(content, media_type=media, headers=HEADERS)

        app.add_api_route(path, serve, methods=["GET"], include_in_schema=False)
