"""GameMode's service on the session's bus: answers ListGames with the pids it is started with."""

import sys

from jeepney import MessageType, new_error, new_method_return
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection

connection = open_dbus_connection(bus="SESSION")
connection.send_and_get_reply(message_bus.RequestName("com.feralinteractive.GameMode"))
print("ready", flush=True)
games = [(int(pid), f"/com/feralinteractive/GameMode/Games/{pid}") for pid in sys.argv[1:]]
while True:
    call = connection.receive()
    if call.header.message_type is MessageType.method_call:
        known = "ListGames" in call.header.fields.values()
        unknown = new_error(call, "org.freedesktop.DBus.Error.UnknownMethod")
        connection.send(new_method_return(call, "a(io)", (games,)) if known else unknown)
