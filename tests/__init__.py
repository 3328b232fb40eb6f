"""What the product promises, shown on real servers."""
