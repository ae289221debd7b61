"""On Linux: the window in front, as the X server's window manager publishes it (EWMH).

With libxcb, which Qt needs too, through ctypes: libX11 would end this process at any error, and
windows may vanish between two questions. Under Wayland it sees programs that still use X, as games
under Proton do.
"""

from __future__ import annotations

import ctypes
import os

from app.core.governor.probes.front import Front
from app.core.governor.probes.probe import NotAvailable

_ANY_TYPE = 0
_ITEMS = 64
"""32-bit items of a property that are read at most; a window has a few states."""


class _Cookie(ctypes.Structure):
    _fields_ = (("sequence", ctypes.c_uint),)


class _Screens(ctypes.Structure):
    """xcb_screen_iterator_t. A screen begins with its root window."""

    _fields_ = (
        ("data", ctypes.POINTER(ctypes.c_uint32)),
        ("rem", ctypes.c_int),
        ("index", ctypes.c_int),
    )


class _AtomReply(ctypes.Structure):
    _fields_ = (
        ("response_type", ctypes.c_uint8),
        ("pad0", ctypes.c_uint8),
        ("sequence", ctypes.c_uint16),
        ("length", ctypes.c_uint32),
        ("atom", ctypes.c_uint32),
    )


class _PropertyReply(ctypes.Structure):
    _fields_ = (
        ("response_type", ctypes.c_uint8),
        ("format", ctypes.c_uint8),
        ("sequence", ctypes.c_uint16),
        ("length", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("bytes_after", ctypes.c_uint32),
        ("value_len", ctypes.c_uint32),
    )


class X11FrontProbe:
    name = "Window in front"

    def __init__(self) -> None:
        self._xcb: ctypes.CDLL | None = None
        self._connection: int | None = None
        self._atoms: dict[str, int] = {}

    def read(self) -> Front | None:
        """The X window with the focus. Raises NotAvailable."""
        self._connect()
        (root,) = self._roots()[:1] or (0,)
        active = self._property(root, "_NET_ACTIVE_WINDOW")
        if self._broken():
            self.rest()
            raise NotAvailable("The X server has closed the connection.")
        if not active or not active[0]:
            if os.environ.get("WAYLAND_DISPLAY"):
                raise NotAvailable("Wayland tells nobody which window is in front, but X's own.")
            return None
        window = active[0]
        pids = self._property(window, "_NET_WM_PID")
        states = self._property(window, "_NET_WM_STATE")
        if not pids:
            return None  # it is gone again, or belongs to another machine
        return Front(pids[0], self._atom("_NET_WM_STATE_FULLSCREEN") in states)

    def rest(self) -> None:
        connection, self._connection = self._connection, None
        self._atoms.clear()
        if connection is not None and self._xcb is not None:
            self._xcb.xcb_disconnect(connection)

    def _connect(self) -> None:
        if self._connection is not None:
            return
        if not os.environ.get("DISPLAY"):
            raise NotAvailable(
                "Wayland tells nobody which window is in front."
                if os.environ.get("WAYLAND_DISPLAY")
                else "There is no X display."
            )
        if self._xcb is None:
            self._xcb = _library()
        connection = self._xcb.xcb_connect(None, None)
        if self._xcb.xcb_connection_has_error(connection):
            self._xcb.xcb_disconnect(connection)
            raise NotAvailable("The X server does not answer.")
        self._connection = connection

    def _broken(self) -> bool:
        assert self._xcb is not None
        return bool(self._xcb.xcb_connection_has_error(self._connection))

    def _roots(self) -> list[int]:
        assert self._xcb is not None
        setup = self._xcb.xcb_get_setup(self._connection)
        screens = self._xcb.xcb_setup_roots_iterator(setup)
        return [screens.data[0]] if screens.rem else []

    def _atom(self, name: str) -> int:
        assert self._xcb is not None
        if name not in self._atoms:
            cookie = self._xcb.xcb_intern_atom(self._connection, 0, len(name), name.encode())
            reply = self._xcb.xcb_intern_atom_reply(self._connection, cookie, None)
            if not reply:
                return 0
            self._atoms[name] = reply.contents.atom
            _free(reply)
        return self._atoms[name]

    def _property(self, window: int, name: str) -> list[int]:
        """Items of a window's property; none where it has none or is gone."""
        assert self._xcb is not None
        cookie = self._xcb.xcb_get_property(
            self._connection, 0, window, self._atom(name), _ANY_TYPE, 0, _ITEMS
        )
        reply = self._xcb.xcb_get_property_reply(self._connection, cookie, None)
        if not reply:
            return []
        try:
            if reply.contents.format != 32:
                return []
            items = ctypes.cast(
                self._xcb.xcb_get_property_value(reply), ctypes.POINTER(ctypes.c_uint32)
            )
            return [int(items[index]) for index in range(reply.contents.value_len)]
        finally:
            _free(reply)


def _library() -> ctypes.CDLL:
    """libxcb with the types of what is used. Raises NotAvailable."""
    try:
        xcb = ctypes.CDLL("libxcb.so.1")
    except OSError as error:
        raise NotAvailable(f"libxcb cannot be loaded ({error}).") from error
    pointer, byte, word, atom = ctypes.c_void_p, ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32
    xcb.xcb_connect.restype = pointer
    xcb.xcb_connect.argtypes = (ctypes.c_char_p, pointer)
    xcb.xcb_connection_has_error.argtypes = (pointer,)
    xcb.xcb_disconnect.argtypes = (pointer,)
    xcb.xcb_disconnect.restype = None
    xcb.xcb_get_setup.restype = pointer
    xcb.xcb_get_setup.argtypes = (pointer,)
    xcb.xcb_setup_roots_iterator.restype = _Screens
    xcb.xcb_setup_roots_iterator.argtypes = (pointer,)
    xcb.xcb_intern_atom.restype = _Cookie
    xcb.xcb_intern_atom.argtypes = (pointer, byte, word, ctypes.c_char_p)
    xcb.xcb_intern_atom_reply.restype = ctypes.POINTER(_AtomReply)
    xcb.xcb_intern_atom_reply.argtypes = (pointer, _Cookie, pointer)
    xcb.xcb_get_property.restype = _Cookie
    xcb.xcb_get_property.argtypes = (pointer, byte, atom, atom, atom, atom, atom)
    xcb.xcb_get_property_reply.restype = ctypes.POINTER(_PropertyReply)
    xcb.xcb_get_property_reply.argtypes = (pointer, _Cookie, pointer)
    xcb.xcb_get_property_value.restype = pointer
    xcb.xcb_get_property_value.argtypes = (ctypes.POINTER(_PropertyReply),)
    return xcb


_libc = ctypes.CDLL(None) if os.name == "posix" else None


def _free(reply: object) -> None:
    """Replies are the caller's, allocated with malloc."""
    if _libc is not None:
        _libc.free(ctypes.cast(reply, ctypes.c_void_p))  # type: ignore[arg-type]
