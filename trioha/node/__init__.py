"""A node: builds the rooms, starts them in one nursery tree and stops them."""
