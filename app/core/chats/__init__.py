"""Conversations kept on disk: one SQLite database in the user's folder.

A conversation is written turn by turn, and an answer while it comes, so that a process that is
killed loses a moment of it at most. Damage is set aside, never deleted or written over.
"""
