"""Where games are installed: one small file a library, each read as that library stores it."""
