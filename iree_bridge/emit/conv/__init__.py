"""Convolutions: ``fprop`` and ``gradients`` are the rules, the other files the forms that they choose from."""
