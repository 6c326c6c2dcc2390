"""What code runs on: devices of HIP, CUDA and the processor, through IREE's runtime, and callers' memory on them."""
