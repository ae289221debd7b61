"""Set-up of checkouts and, later, of installed programs. Standard library only."""
