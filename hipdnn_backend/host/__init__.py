"""A host for engines: what is installed, which engine a graph gets, plans and variant packs; or the real hipDNN."""
