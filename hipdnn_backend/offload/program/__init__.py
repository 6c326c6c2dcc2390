"""The program that a model becomes: its data, its document, how it is made from the last module, and how it runs."""
