"""What code is compiled for: chips, processors and their extensions, and the forms that each has to choose from."""
