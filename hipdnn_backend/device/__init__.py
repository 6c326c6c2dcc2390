"""Memory and streams of HIP, CUDA and the host, and arrays of other libraries in them."""
