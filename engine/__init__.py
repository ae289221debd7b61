"""Headrace's engine: Mixture-of-Experts inference from host memory through a cache that follows the router."""

__version__ = "0.1.0"
