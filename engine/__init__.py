"""Headrace's engine: MoE inference from host memory through a cache that follows the router."""

__version__ = "0.1.0"
