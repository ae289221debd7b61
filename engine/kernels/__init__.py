"""Operations looked up by name and device: torch references, and kernels registered beside them."""

# Whoever uses an operation gets the kernels that answer for it.
from engine.kernels import native as native
