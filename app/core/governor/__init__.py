"""Gives VRAM to games and other programs and takes it back: probes ▸ evidence ▸ arbiter ▸ budget.

`probes` look at the system, `sampler` makes one piece of evidence of what they see, `arbiter`
decides, without a clock or a system of its own, how much VRAM the engine may hold and why, `loop`
asks the engine for that, and `view` has the words.
"""
