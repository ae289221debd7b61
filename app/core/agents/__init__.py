"""Coding agents on this machine: which are there, and pointing them at Headrace and back."""
