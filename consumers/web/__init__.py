"""A page that shows a model live, made of its published releases only."""
