"""EarlyStopping's certificate: served over TLS, and the next one without a restart."""

import datetime as dt
from concurrent import futures
from pathlib import Path

import grpc

from certs import issue
from controller import tls

NOW = dt.datetime.now(dt.UTC)
PATH = "/test/Say"


def write(folder: Path, authority: issue.Pair) -> None:
    leaf = issue.leaf(authority, ["localhost"], NOW, dt.timedelta(days=1))
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)


def said(port: int, authority: issue.Pair) -> bytes | grpc.StatusCode:
    """What a new client that trusts this CA is answered."""
    credentials = grpc.ssl_channel_credentials(authority.certificate)
    # Of its own: else grpc shares one connection among channels.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"localhost:{port}", credentials, options) as channel:
        try:
            answer: bytes = channel.unary_unary(PATH)(b"", timeout=10)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return answer


def test_a_new_pair_serves_from_the_next_connection_on_and_a_broken_one_never(tmp_path: Path) -> None:
    first, second = issue.authority(NOW), issue.authority(NOW)
    write(tmp_path, first)
    handler = grpc.method_handlers_generic_handler(
        "test", {"Say": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"heard")}
    )
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_secure_port("localhost:0", tls.credentials(tmp_path / "tls.crt", tmp_path / "tls.key"))
    server.start()
    try:
        assert said(port, first) == b"heard"
        (tmp_path / "tls.key").write_bytes(issue.authority(NOW).key)  # of another certificate
        assert said(port, first) == b"heard"
        write(tmp_path, second)
        assert said(port, second) == b"heard"
        assert said(port, first) is grpc.StatusCode.UNAVAILABLE
    finally:
        server.stop(0).wait()
