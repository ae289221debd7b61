"""Headrace's desktop app: window, tray, supervisor. It never imports torch."""
