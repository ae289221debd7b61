"""On Linux: programs that have registered with GameMode, asked over the session's D-Bus."""

from __future__ import annotations

import contextlib

from jeepney import DBusAddress, HeaderFields, Message, MessageFlag, MessageType, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection

from app.core.governor.probes.probe import NotAvailable

_TIMEOUT_S = 1.0
_SERVICE = DBusAddress(
    "/com/feralinteractive/GameMode",
    bus_name="com.feralinteractive.GameMode",
    interface="com.feralinteractive.GameMode",
)
_NOT_RUNNING = (
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
)


class GameModeProbe:
    name = "GameMode"

    def __init__(self) -> None:
        self._connection: DBusConnection | None = None

    def read(self) -> frozenset[int]:
        """Pids of registered games; none where GameMode does not run. Raises NotAvailable."""
        try:
            reply = self._ask()
        except KeyError as error:
            raise NotAvailable("This session has no D-Bus.") from error
        # The bus is gone, its address is odd, or what comes is no message of it.
        except (OSError, ValueError, RuntimeError, StopIteration) as error:
            self.rest()
            raise NotAvailable(f"The session's D-Bus does not answer ({error}).") from error
        if reply.header.message_type is MessageType.method_return:
            (games,) = reply.body
            return frozenset(int(pid) for pid, _ in games)
        problem = reply.header.fields.get(HeaderFields.error_name, "")
        if problem in _NOT_RUNNING:
            return frozenset()
        raise NotAvailable(f"GameMode answers with an error ({problem}).")

    def rest(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _ask(self) -> Message:
        if self._connection is None:
            self._connection = open_dbus_connection(bus="SESSION")
        call = new_method_call(_SERVICE, "ListGames")
        call.header.flags |= MessageFlag.no_auto_start  # asking must not start GameMode
        return self._connection.send_and_get_reply(call, timeout=_TIMEOUT_S)
