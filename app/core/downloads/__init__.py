"""Models from the hub: fetched, checked, listed and deleted.

A download is *ready* when every byte of every file is what the hub's metadata promises, and never
before. The parts, from the interface down:

* `records`: what passes between the parts, and what the interface shows.
* `supervisor`: the state machine of all downloads; decides, touches neither disk nor network.
* `worker` (`python -m app.core.downloads.worker`): the child process that does one task.
* `process`: the same driven by a plain subprocess, for the command line and for threads.
* `library`: what models lie on disk, and deleting them.

Why the hub's own client does not fetch: as of huggingface_hub 2.4 it writes to a temporary file
that it deletes when the download fails, so nothing is resumed; its progress comes in a terminal's
bars; it compares a file's length and never its checksum; and its Xet client reports bytes that are
not on disk yet. What is needed of the hub is small: one request for a repository's files with their
sizes and digests, and one ranged GET a file, which the hub serves for files that it keeps in Xet
too. So both are made here, with httpx2, and the files lie in the hub's own cache layout, where
every other program finds them.
"""
