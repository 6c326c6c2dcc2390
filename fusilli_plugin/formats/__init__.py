"""Files and objects that hold graphs and models: what each is, told by its content, and graphs read from them."""
