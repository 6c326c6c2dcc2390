"""What code for AMD chips will cost, as far as that is seen without a device: figures of the code, and of the chip."""
