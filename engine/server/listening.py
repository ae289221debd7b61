"""The sockets that the server listens on, bound before anything else is started."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import sys

from engine.errors import InvalidRequest, PortInUse

log = logging.getLogger("headrace.server")

BACKLOG = 512
DESCRIPTORS = 8192
"""Each connection takes one; idle ones are kept for a while."""
_RETRIES = 8


def allow_many_connections() -> None:
    """Raise the limit of open files as far as the system lets this process; some start with 256."""
    if sys.platform == "win32":
        return  # has none for sockets
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("no more than %d files and connections may be open: %s", soft, error)


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for a host; the first one's port is the server's.

    Beside 127.0.0.1 the same port of ::1 is taken where IPv6 exists: clients that are given
    `localhost` try that first, and must not reach another program there. Port 0 takes any free
    port. Raises PortInUse naming the port, InvalidRequest for a host that cannot be listened on.
    """
    addresses = _addresses(host)
    for attempt in range(_RETRIES):
        sockets = [_bind(*addresses[0], port)]
        chosen = sockets[0].getsockname()[1]
        try:
            for family, address in addresses[1:]:
                extra = _bind_companion(family, address, chosen)
                if extra is not None:
                    sockets.append(extra)
            return sockets
        except PortInUse:
            for opened in sockets:
                opened.close()
            # With port 0 the other family's port may be taken by chance: choose again.
            if port != 0 or attempt == _RETRIES - 1:
                raise
    raise AssertionError("unreachable")


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    if host in ("127.0.0.1", "localhost"):
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidRequest(f"The host {host!r} is unknown: {error}.", param="--host") from error
    family, _, _, _, address = found[0]
    return [(family, str(address[0]))]


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            # Windows lets two programs share a port unless one of them objects.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            # Only skips the wait after a server that ended; a listening one is still respected.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _refused(error, address, port) from error
    return sock


def _bind_companion(family: socket.AddressFamily, address: str, port: int) -> socket.socket | None:
    try:
        return _bind(family, address, port)
    except InvalidRequest:
        log.debug("%s does not exist here", address)
        return None
    except OSError:  # no IPv6 at all
        return None


def _refused(error: OSError, address: str, port: int) -> PortInUse | InvalidRequest:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"Port {port} on {address} is in use by another program.",
            hint="End that program, or choose another port with --port (0 takes any free one).",
            param="--port",
        )
    if error.errno == errno.EACCES:
        return PortInUse(
            f"Port {port} on {address} may not be opened: {error.strerror}.",
            hint="Choose a port above 1023, or one that no other program holds.",
            param="--port",
        )
    return InvalidRequest(
        f"The server cannot listen on {address} port {port}: {error.strerror}.", param="--host"
    )


def url(host: str, port: int) -> str:
    try:
        literal = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        literal = host
    return f"http://{literal}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
