"""Other people's engine plugins: the C interface, shared libraries behind it, and where hipDNN looks for them."""
