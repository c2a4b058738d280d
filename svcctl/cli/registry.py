"""Every command of svcctl: its name, the module that holds it, one line of help, its section.

This table is all that `svcctl --help`, command completion and the search for a mistyped name read, so none of
them imports a command. A module listed here exposes its click command as `command`.
"""

from __future__ import annotations

from svcctl.record import Record


class Entry(Record):
    """Where a command lives and how help introduces it."""

    module: str
    help: str
    section: str


STATE = "Host state"
INCOMING = "Incoming connections"
OUTGOING = "Outgoing connections"
CONFIGURATION = "Configuration and inspection"
GENERAL = "General"

_ROWS = (
    ("load", STATE, "Make the state directory and attach the dispatcher."),
    ("unload", STATE, "Detach everything and remove the state directory."),
    ("upgrade", STATE, "Swap the programs in place; resize maps."),
    ("attach", STATE, "Attach a program that is not attached."),
    ("detach", STATE, "Detach a program, keep the state."),
    ("attachments", STATE, "What is attached where."),
    ("status", STATE, "The whole picture on one screen."),
    ("check", STATE, "Verify the maps against each other; mend them."),
    ("doctor", STATE, "Kernel features, capabilities, mounts and modes."),
    ("gc", STATE, "End drains that are over; remove leftovers."),
    ("batch", STATE, "Run one command a line under one lock."),
    ("bind", INCOMING, "Send connections to a prefix and port to a label."),
    ("unbind", INCOMING, "Remove a binding."),
    ("load-bindings", INCOMING, "Make the bindings those of a file."),
    ("bindings", INCOMING, "List bindings, most specific first."),
    ("register", INCOMING, "Register sockets handed over by systemd."),
    ("register-pid", INCOMING, "Register the listening socket of a process."),
    ("unregister", INCOMING, "Remove the sockets of a label."),
    ("destinations", INCOMING, "List labels with their sockets and counters."),
    ("service", OUTGOING, "Add, change and delete services."),
    ("backend", OUTGOING, "Add, change, drain and delete backends of a service."),
    ("services", OUTGOING, "List services."),
    ("frontends", OUTGOING, "List the addresses of services."),
    ("backends", OUTGOING, "List the backends of services."),
    ("nat", OUTGOING, "Which backends each frontend leads to, as the kernel has it."),
    ("lut", OUTGOING, "The Maglev table of a service: who has which share."),
    ("affinity", OUTGOING, "Which clients stick to which backends."),
    ("reverse", OUTGOING, "Which sockets' backends stand for which frontends."),
    ("nodes", OUTGOING, "Other nodes of the cluster: list, add and delete them."),
    ("conntrack", OUTGOING, "Flows of the packet path: list them, flush them."),
    ("apply", CONFIGURATION, "Make services and bindings those of a desired state."),
    ("diff", CONFIGURATION, "What apply would change."),
    ("explain", CONFIGURATION, "What would happen to a connection, and why."),
    ("export", CONFIGURATION, "Print the desired state as a file."),
    ("save", CONFIGURATION, "Write the export where the boot unit restores it."),
    ("follow", CONFIGURATION, "Keep the state as a Kubernetes cluster has it."),
    ("health", CONFIGURATION, "Answer health checks of services and of the node."),
    ("metrics", CONFIGURATION, "Prometheus metrics, served or printed once."),
    ("top", CONFIGURATION, "Live rates by label and service."),
    ("version", GENERAL, "Print the version."),
    ("help", GENERAL, "Help for a command or a topic."),
)

COMMANDS: dict[str, Entry] = {
    name: Entry(f"svcctl.cli.commands.{name.replace('-', '_')}", text, section)
    for name, section, text in _ROWS
}
