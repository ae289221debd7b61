"""Eyes of the governor: small files that each look at one thing, and say so where they cannot."""
