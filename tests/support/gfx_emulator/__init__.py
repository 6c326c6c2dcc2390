"""The emulator of `fusilli_plugin.emulator`, as tests use it."""
