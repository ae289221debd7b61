"""The native library: CPU kernels at memory speed, in C++ (`source/`), and the way to it."""
